"""Status, metrics and health: the numbers are right, cheap to ask for, and move."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Semaphore
from typing import Any

import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from psycopg import Connection

from scheduler import dead_letter_hooks, enqueue_many
from scheduler.dispatch import claim, declare_limits, new_owner
from scheduler.finish import fail
from scheduler.service.database import Database
from scheduler.service.kept import Kept
from scheduler.service.readiness import Readiness
from scheduler.service.snapshot import KindCounts, live_counts
from scheduler.statements import statement
from tests.scheduler.working import LEASE, nodes
from tests.scheduler.working import kind as make_kind
from tests.service.conftest import ONCE, Api, MakeApi, slug, without_empty_pages
from tests.waiting import wait_for

WORK = make_kind("work", ONCE)
THREADS = 40  # that the framework runs plain functions in


def scrape(api: Api, name: str, **labels: str) -> float | None:
    """The value of one sample, or None if it is not there."""
    answer = api.get("/metrics")
    assert answer.status_code == 200
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return float(sample.value)
    return None


def take(db: Connection, kind: str = "work") -> Any:
    """Claim one task."""
    [attempt] = claim(db, new_owner("w"), {kind: LEASE}, 1, 0.0)
    return attempt


def test_each_of_the_queues_metrics_moves(api: MakeApi, db: Connection) -> None:
    shop = api()

    def tasks(status: str) -> float | None:
        return scrape(shop, "leaseproof_tasks", kind="work", status=status)

    def of(name: str) -> float | None:
        return scrape(shop, f"leaseproof_{name}", kind="work")

    assert scrape(shop, "leaseproof_database_up") == 1
    assert [tasks(status) for status in ("pending", "running", "dead")] == [0, 0, 0]
    assert (of("due_tasks"), of("oldest_due_age_seconds"), of("expired_leases")) == (0, 0, 0)
    shop.enqueue(delay_seconds=3600)
    late = shop.enqueue(run_at="2026-01-01T00:00:00Z")
    assert (tasks("pending"), of("due_tasks")) == (2, 1)
    assert (of("oldest_due_age_seconds") or 0) > 86_400
    attempt = take(db)
    assert (tasks("pending"), tasks("running"), of("due_tasks")) == (1, 1, 0)
    db.execute(
        "update scheduler.tasks set lease_expires_at = now() - interval '1 s' where id = %s", [late]
    )
    assert of("expired_leases") == 1
    fail(db, [attempt.lease], ["no"])
    assert (tasks("running"), tasks("dead"), of("expired_leases")) == (0, 1, 0)


def test_the_age_of_the_oldest_run_is_shown_and_ends_with_it(api: MakeApi, db: Connection) -> None:
    shop = api()
    shop.enqueue()
    attempt = take(db)
    db.execute("update scheduler.tasks set claimed_at = now() - interval '1 day'")
    age = scrape(shop, "leaseproof_oldest_running_age_seconds", kind="work")
    assert (age or 0) > 86_000
    fail(db, [attempt.lease], ["no"])
    assert scrape(shop, "leaseproof_oldest_running_age_seconds", kind="work") == 0


def test_enqueues_and_deaths_are_counted_whoever_made_them(api: MakeApi, db: Connection) -> None:
    shop = api()
    names = ("leaseproof_enqueued_tasks_total", "leaseproof_dead_letters_total")
    before = [scrape(shop, name) or 0 for name in names]
    enqueue_many(db, WORK, range(3))
    for _ in range(2):
        fail(db, [take(db).lease], ["no"])
    db.execute("select pg_stat_force_next_flush()")

    def grown() -> bool:
        now = [scrape(shop, name) or 0 for name in names]
        # The database is shared by these tests: others' sessions may report late.
        return now[0] >= before[0] + 3 and now[1] >= before[1] + 2

    wait_for(grown, "the server's statistics")


def test_the_limits_of_kinds_are_shown_beside_what_runs(api: MakeApi, db: Connection) -> None:
    shop = api()
    assert scrape(shop, "leaseproof_running_limit_tasks", kind="work") is None
    declare_limits(db, {"work": 3})
    assert scrape(shop, "leaseproof_running_limit_tasks", kind="work") == 3


def test_what_a_hook_is_yet_to_be_told_is_counted(api: MakeApi, db: Connection) -> None:
    shop = api()

    def counts() -> list[float | None]:
        name = "leaseproof_dead_letter_deliveries"
        return [scrape(shop, name, hook="pager", state=it) for it in ("waiting", "given-up")]

    assert counts() == [None, None]
    dead_letter_hooks.register(db, "pager")
    shop.enqueue()
    shop.enqueue()
    for _ in range(2):
        fail(db, [take(db).lease], ["no"])
    assert counts() == [2, 0]
    db.execute(
        "update scheduler.deliveries set given_up = true"
        " where id = (select min(id) from scheduler.deliveries)"
    )
    assert counts() == [1, 1]


def test_requests_and_refused_enqueues_are_counted(api: MakeApi) -> None:
    shop = api()
    requests = "leaseproof_http_request_duration_seconds_count"
    route = "/api/v1/tasks/{task}"
    shop.get("/api/v1/tasks/7")
    shop.get("/api/v1/tasks/8")
    assert scrape(shop, requests, method="GET", route=route, status="404") == 2
    shop.get("/made/up/by/a/client")
    shop.client.request("MADEUP", "/api/v1/tasks", headers=shop.headers)
    assert scrape(shop, requests, method="GET", route="none", status="404") == 1
    assert scrape(shop, requests, method="other") == 1
    refusals = "leaseproof_enqueue_refusals_total"
    body: dict[str, object] = {"kind": "work", "payload": "x"}
    shop.post("/api/v1/tasks", body)
    shop.post("/api/v1/tasks/batch", {"kind": "work", "payloads": ["x"]})
    shop.post("/api/v1/tasks", {"kind": "none", "payload": 1})
    shop.client.post("/api/v1/tasks", json=body)
    shop.client.post("/api/v1/tasks", content=b" " * 2_000_000, headers=shop.headers)
    assert scrape(shop, refusals, reason="invalid-payload") == 2
    assert scrape(shop, refusals, reason="unknown-kind") == 1
    assert scrape(shop, refusals, reason="missing-token") == 1
    assert scrape(shop, refusals, reason="body-too-large") == 1


def test_the_status_has_the_live_tasks_of_all_sources(api: MakeApi, db: Connection) -> None:
    shop = api()
    api(source="other").enqueue()
    shop.enqueue(kind="any", delay_seconds=60)
    shop.enqueue(kind="any")
    attempt = take(db, "any")
    fail(db, [attempt.lease], ["no"])
    found = shop.get("/api/v1/status").json()
    assert found["clock"] == "statement_timestamp()"
    assert found["schema_version"] >= 4
    assert [
        (it["kind"], it["pending"], it["due"], it["running"], it["dead"]) for it in found["kinds"]
    ] == [("any", 2, 0, 0, 0), ("work", 1, 1, 0, 0)]
    assert found["oldest_due_seconds"] == found["kinds"][1]["oldest_due_seconds"] > 0
    assert found["age_seconds"] >= 0


def test_a_token_is_told_what_it_may_do(api: MakeApi) -> None:
    assert api("read", "enqueue", kinds=["work"]).get("/api/v1/token").json() == {
        "name": "token1",
        "source": "shop",
        "scopes": ["enqueue", "read"],
        "kinds": ["work"],
    }


def test_health_needs_no_token(api: MakeApi) -> None:
    client = api().client
    for path in ("/health/live", "/health/ready"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_the_process_says_that_it_lives_while_every_thread_waits(
    api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, entered, go = api().client, Semaphore(0), Event()

    def wait(self: Readiness) -> bool:
        entered.release()
        return go.wait(60)

    monkeypatch.setattr(Readiness, "ready", wait)
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for _ in range(THREADS):
                pool.submit(client.get, "/health/ready")
            for _ in range(THREADS):
                assert entered.acquire(timeout=30)
            alive = ThreadPoolExecutor(1).submit(client.get, "/health/live").result(20)
        finally:
            go.set()
    assert alive.status_code == 200


def test_a_schema_that_this_version_does_not_know_is_not_ready(
    api: MakeApi, db: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    client = api().client
    db.execute("insert into scheduler.migrations (version, name) values (9999, 'later')")
    try:
        answer = client.get("/health/ready")
    finally:
        db.execute("delete from scheduler.migrations where version = 9999")
    assert (answer.status_code, slug(answer)) == (503, "database-unavailable")
    assert "newer than" in caplog.text
    assert client.get("/health/live").status_code == 200


def test_the_numbers_are_asked_for_rarely_however_long_it_takes(
    http_dsn: str,
) -> None:
    now, asked, takes = 0.0, 0, 0.0

    def ask(connection: Connection, former: int | None) -> int:
        nonlocal asked, now
        assert former == (asked or None)
        asked += 1
        now += takes
        return asked

    database = Database(http_dsn, 1)
    database.open()
    try:
        kept = Kept(database, ask, lambda: now)
        for moment in (0.0, 1.0, 4.9):
            now = moment
            assert kept.get() == (1, moment)
        now, takes = 5.1, 2.0
        assert kept.get() == (2, 2.0)  # as of the moment in which it was asked for
        now = 7.1 + 39.0  # a twentieth of the time: two seconds in forty
        assert kept.get().answer == 2
        now = 7.1 + 40.1
        assert kept.get().answer == 3
    finally:
        database.close()


def test_a_question_that_takes_too_long_is_not_asked_again_at_once(http_dsn: str) -> None:
    now, asked, takes = 0.0, 0, 2.0

    def ask(_: Connection, __: int | None) -> int:
        nonlocal asked, now
        asked += 1
        now += takes
        if asked > 2:
            return asked
        raise psycopg.errors.QueryCanceled("too long")

    database = Database(http_dsn, 1)
    database.open()
    try:
        kept = Kept(database, ask, lambda: now)
        for moment in (0.0, 2.0, 41.9):
            now = moment
            with pytest.raises(psycopg.errors.QueryCanceled):
                kept.get()
        assert asked == 1
        takes = 30.0
        for moment in (42.1, 132.0):  # until 72.1, and for a minute at most
            now = moment
            with pytest.raises(psycopg.errors.QueryCanceled):
                kept.get()
        assert asked == 2
        now = 132.2
        assert kept.get().answer == 3
    finally:
        database.close()


def test_who_comes_while_another_asks_has_the_former_answer(http_dsn: str) -> None:
    now, answers = 0.0, iter((1, 2))
    asking, go_on = Event(), Event()
    go_on.set()

    def ask(_: Connection, __: int | None) -> int:
        asking.set()
        assert go_on.wait(60)
        return next(answers)

    database = Database(http_dsn, 1)
    database.open()
    try:
        kept = Kept(database, ask, lambda: now)
        assert kept.get().answer == 1
        now = 6.0
        asking.clear()
        go_on.clear()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(kept.get)
            assert asking.wait(60)
            assert kept.get() == (1, 6.0)
            go_on.set()
            assert first.result().answer == 2
    finally:
        go_on.set()
        database.close()


FILL = (
    "insert into scheduler.tasks (kind, priority, payload, next_run_at, max_attempts, backoff_base,"
    " backoff_factor, backoff_cap, backoff_jitter, enqueued_at)"
    " select %s, n %% 4, '1', now() + n * %s::interval, 1, 1, 1, 1, 0, now()"
    " from generate_series(1, %s) as n"
)


def test_of_very_many_waiting_tasks_some_are_counted_and_the_rest_estimated(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.snapshot.COUNTED", 3_000)  # so 1,000 of each kind
    monkeypatch.setattr("scheduler.service.snapshot.SAMPLED", 40)  # of some 170 pages
    without_empty_pages(db)
    for kind, apart, count in (
        ("work", "-1 s", 6_000),
        ("any", "1 h", 6_000),  # none is due
        ("few", "-1 s", 1_000),
    ):
        db.execute(FILL, [kind, apart, count])
    db.execute("update scheduler.tasks set next_run_at = '2020-01-01' where id = %s", [lowest(db)])
    meter = api()
    found = {it["kind"]: it for it in meter.get("/api/v1/status").json()["kinds"]}
    few, work, later = found["few"], found["work"], found["any"]
    assert [few[it] for it in ("pending", "pending_estimated", "due", "due_estimated")] == [
        *(1_000, False, 1_000, False)
    ]
    assert (work["pending_estimated"], work["due_estimated"]) == (True, True)
    # Which pages are drawn is no chance, so neither are these numbers.
    assert 3_000 < work["pending"] < 12_000
    assert work["due"] <= work["pending"]
    # So many wait that they are estimated; those that are due are so few that they are counted.
    assert 3_000 < later["pending"] < 12_000
    assert (later["pending_estimated"], later["due"], later["due_estimated"]) == (True, 0, False)
    # The oldest is found behind all the others.
    assert work["oldest_due_seconds"] > 365 * 86_400
    estimated = "leaseproof_counts_estimated"
    assert scrape(meter, estimated, kind="work", status="due") == 1
    assert scrape(meter, estimated, kind="any", status="pending") == 1
    assert scrape(meter, estimated, kind="any", status="due") == 0
    assert scrape(meter, "leaseproof_snapshot_age_seconds") is not None


def lowest(db: Connection) -> int:
    """The last of the least urgent tasks of the kind `work`."""
    [(task,)] = db.execute(
        "select max(id) from scheduler.tasks where kind = 'work' and priority = 3"
    ).fetchall()
    return int(task)


def test_an_estimate_is_no_less_than_what_was_counted(
    db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.snapshot.COUNTED", 1_000)
    monkeypatch.setattr("scheduler.service.snapshot.SAMPLED", 1e-9)  # finds none
    db.execute(FILL, ["work", "-1 s", 1_001])
    [count] = live_counts(db)
    assert (count.pending, count.due, count.pending_estimated) == (1_000, 1_000, True)


KILL = (
    "update scheduler.tasks set status = 'dead', attempts = max_attempts, last_error = 'no',"
    " finished_at = now()"
)


def test_of_very_many_dead_letters_some_are_counted_and_the_rest_estimated(
    api: MakeApi, db: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.service.snapshot.COUNTED", 2_000)  # so 1,000 of each kind
    monkeypatch.setattr("scheduler.service.snapshot.SAMPLED", 40)
    without_empty_pages(db)
    db.execute(FILL, ["work", "-1 s", 6_000])
    db.execute(FILL, ["few", "-1 s", 1_000])
    db.execute(KILL)
    db.execute(FILL, ["work", "-1 s", 10])
    meter = api()
    found = {it["kind"]: it for it in meter.get("/api/v1/status").json()["kinds"]}
    few, work = found["few"], found["work"]
    assert (few["dead"], few["dead_estimated"]) == (1_000, False)
    assert work["dead_estimated"]
    assert 3_000 < work["dead"] < 12_000
    assert (work["pending"], work["pending_estimated"]) == (10, False)
    estimated = "leaseproof_counts_estimated"
    assert scrape(meter, estimated, kind="work", status="dead") == 1
    assert scrape(meter, estimated, kind="few", status="dead") == 0
    assert scrape(meter, "leaseproof_tasks", kind="work", status="dead") == work["dead"]


def test_what_counting_reads_is_bounded_however_many_deliveries_there_are(db: Connection) -> None:
    dead_letter_hooks.register(db, "pager")
    db.execute(FILL, ["work", "-1 s", 6_000])
    db.execute(KILL)
    db.execute("update scheduler.deliveries set given_up = id % 3 = 0, last_error = 'no ' || id")
    [all_of_them] = dead_letter_hooks.hooks(db)
    assert (all_of_them.waiting, all_of_them.given_up) == (4_000, 2_000)
    [some] = dead_letter_hooks.hooks(db, 100)
    assert (some.waiting, some.given_up) == (100, 100)
    assert some.last_error == all_of_them.last_error
    assert sum(read(db, "hook_counts", 100)) <= 4 * 100 + 1


@pytest.mark.parametrize("dead", [False, True])
def test_what_counting_reads_is_bounded_however_much_waits_or_is_dead(
    db: Connection, dead: bool
) -> None:
    db.execute(FILL, ["work", "-1 s", 20_000])
    if dead:
        db.execute(KILL)
    rows = read(db, "live_counts", 2_000)
    assert max(rows) >= 2_000
    assert sum(rows) < 5_000


def read(db: Connection, name: str, most: int) -> list[int]:
    """How many rows each part of a statement's plan reads of a table, as `ask` lets it be
    planned."""
    for method in ("enable_seqscan", "enable_bitmapscan"):
        db.execute(f"set {method} = off".encode())
    try:
        ask = b"explain (analyze, format json) " + statement(name)
        [[[explained]]] = db.execute(ask, {"most": most}, prepare=False).fetchall()
    finally:
        db.execute("reset all")
    return [
        (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"]
        for node in nodes(explained["Plan"])
        if "Relation Name" in node
    ]


def test_counting_has_more_time_than_a_request(
    api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, found = api(), []

    def count(connection: Connection) -> list[KindCounts]:
        found.append(connection.execute("show statement_timeout").fetchone())
        return []

    monkeypatch.setattr("scheduler.service.snapshot.live_counts", count)
    assert scrape(shop, "leaseproof_database_up") == 1
    assert found == [("30s",)]


def test_a_database_that_fails_leaves_out_the_queue_and_keeps_no_old_numbers(
    api: MakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = api()
    shop.enqueue()
    assert scrape(shop, "leaseproof_due_tasks", kind="work") == 1

    def away(connection: Connection) -> list[KindCounts]:
        raise psycopg.OperationalError("away")

    monkeypatch.setattr("scheduler.service.snapshot.live_counts", away)
    assert scrape(shop, "leaseproof_database_up") == 0
    assert scrape(shop, "leaseproof_due_tasks", kind="work") is None
    assert slug(shop.get("/api/v1/status")) == "database-unavailable"


def test_every_answer_says_what_a_browser_may_do_with_it(api: MakeApi) -> None:
    client = api().client
    for path in ("/", "/api/v1/tasks", "/nothing"):
        headers = client.get(path).headers
        assert "default-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    assert "Leaseproof" in client.get("/").text
    assert client.get("/static/index.html").status_code == 200


def test_a_token_for_some_kinds_is_not_told_the_metrics_of_all(api: MakeApi) -> None:
    answer = api("metrics", kinds=["work"]).get("/metrics")
    assert (answer.status_code, slug(answer)) == (403, "kind-not-allowed")
    assert api("metrics").get("/metrics").status_code == 200
