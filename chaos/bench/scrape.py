"""`chaos bench scrape`: what it costs the server to count the queue for its metrics.

Rows are put in by one INSERT and vacuumed, as autovacuum has done in a queue that stands; then each
scrape asks everything that `/metrics` and the status ask, on a session with the service's settings.
How often that is done is the service's affair: a twentieth of one connection's time at most.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median
from typing import NamedTuple

import psutil
import psycopg

import scheduler
from chaos.bench.computer import SETTINGS
from chaos.cluster.postgres import postgres
from scheduler.service.database import SETTINGS as SESSION
from scheduler.service.snapshot import ask
from scheduler.session import with_settings

SCRAPES = 5
BESIDES = 200_000  # tasks that wait beside the finished ones

_FILL = """
insert into scheduler.tasks (
    kind, payload, status, next_run_at, max_attempts, attempts, backoff_base, backoff_factor,
    backoff_cap, backoff_jitter, enqueued_at, finished_at)
select 'kind-' || n %% 20, '{"n": 1}', %(status)s, now() - n * interval '1 ms', 3, 0, 1, 2, 60, 0,
    now(), case when %(status)s = 'completed' then now() end
from generate_series(1, %(rows)s) as n
"""


class Scraped(NamedTuple):
    """One queue: how many tasks of each sort it has, and how many seconds a scrape takes, of the
    clock and of the server's processor, of which a busy machine takes no more."""

    finished: int
    waiting: int
    seconds: float
    slowest: float
    processor: float


def run(rows: int) -> Iterator[Scraped]:
    """Measure a queue where so many tasks wait, and one that has as many finished ones."""
    with postgres(settings=SETTINGS) as server:
        for finished, waiting in ((0, rows), (rows, min(rows, BESIDES))):
            name = f"scrape_{finished}_{waiting}"
            server.create_database(name)
            scheduler.migrate(server.dsn(name))
            yield measure(server.dsn(name), finished, waiting)
            server.drop_database(name)


def measure(dsn: str, finished: int, waiting: int) -> Scraped:
    """Fill an empty queue and scrape it."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for status, count in (("completed", finished), ("pending", waiting)):
            connection.execute(_FILL.encode(), {"status": status, "rows": count})
        connection.execute("vacuum (analyze) scheduler.tasks")
    took, used = [], []
    with psycopg.connect(dsn, autocommit=True, options=with_settings(dsn, SESSION)) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        for _ in range(SCRAPES):
            before, began = backend.cpu_times(), time.perf_counter()
            ask(connection)
            took.append(time.perf_counter() - began)
            used.append(sum(backend.cpu_times()[:2]) - sum(before[:2]))
    return Scraped(finished, waiting, median(took), max(took), median(used))
