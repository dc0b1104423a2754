"""What a result must say of the machine it was measured on, its disk above all."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import psutil
import psycopg

from chaos.bench.result import Measurement, Result
from chaos.bench.statistics import percentile
from chaos.cluster.postgres import Postgres

COMMITS = 200
TMPFS = "The server's data was on tmpfs: no commit was durable, and commits cost nothing."
# Beside what the harness always sets. The sizes keep checkpoints out of a drain of seconds; the
# rest is PostgreSQL's own default, which the harness's other runs do not have.
SETTINGS = {
    "wal_level": "replica",
    "max_wal_senders": "0",
    "max_replication_slots": "10",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
}
_SHOWN = (
    *("server_version", "fsync", "synchronous_commit", "full_page_writes", "wal_level"),
    *("wal_sync_method", "shared_buffers", "max_wal_size", "autovacuum"),
)


class Clock:
    """A run of a bench: when it began, on what machine, and the disk before and after."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._began = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._clock = time.monotonic()
        self._machine: dict[str, str | float] = {}

    def start(self, server: Postgres) -> None:
        """Describe the machine, before there is any load."""
        self._machine = describe(server)

    def note(self, versions: Mapping[str, str]) -> None:
        """Add what else was measured, and in which version."""
        self._machine |= versions

    def result(
        self,
        bench: str,
        axis: str,
        server: Postgres,
        notes: Sequence[str],
        measurements: Sequence[Measurement],
    ) -> Result:
        """The result, when all is measured and the server still runs."""
        after = commit_latency(server)
        machine = self._machine | {f"commit_{what}_ms_after": took for what, took in after.items()}
        disk = (TMPFS,) if machine["file_system"] == "tmpfs" else ()
        return Result(
            bench=bench,
            axis=axis,
            command=self._command,
            began=self._began,
            seconds=round(time.monotonic() - self._clock, 1),
            machine=machine,
            notes=(*notes, *disk),
            measurements=tuple(measurements),
        )


def describe(server: Postgres) -> dict[str, str | float]:
    """Hardware, versions, the server's settings, and what one durable commit costs here."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        shown: dict[str, str] = dict(
            connection.execute(
                "select name, case when unit is null then setting else current_setting(name) end"
                " from pg_settings where name = any(%s)",
                [list(_SHOWN)],
            ).fetchall()
        )
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "file_system": _file_system(server.directory),
        "load_before": round(os.getloadavg()[0], 2),
        **{f"postgres {name}": shown[name] for name in _SHOWN},
        "leaseproof": version("leaseproof"),
        "python": platform.python_version(),
        "psycopg": f"{psycopg.__version__} ({psycopg.pq.__impl__})",
        **{f"commit_{what}_ms_before": took for what, took in commit_latency(server).items()},
    }


def commit_latency(server: Postgres) -> dict[str, float]:
    """Milliseconds that the insert of one row takes with its durable commit, one after another."""
    took = []
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("create table if not exists commits (n integer)")
        for number in range(COMMITS):
            began = time.perf_counter()
            connection.execute("insert into commits values (%s)", [number])
            took.append((time.perf_counter() - began) * 1000)
        connection.execute("drop table commits")
    return {"p50": round(percentile(took, 50), 3), "p99": round(percentile(took, 99), 3)}


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(path: Path) -> str:
    """The kind of file system that the server's data is on. On `tmpfs` no commit is durable."""
    mounts = [
        (Path(part.mountpoint), part.fstype)
        for part in psutil.disk_partitions(all=True)
        if path.is_relative_to(part.mountpoint)
    ]
    return max(mounts, key=lambda mount: len(mount[0].parts))[1] if mounts else "unknown"
