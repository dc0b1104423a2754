"""The example application, run as its readers would run it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread

import pytest
from psycopg import Connection

import scheduler
from examples import office, shop
from scheduler import AccessError, Registry, Worker, declare_schedules, enqueue, list_schedules
from scheduler.access import Source, sources
from tests.waiting import wait_for

ROOT = Path(__file__).parent.parent
EMAIL = "ada@example.org"


@pytest.fixture
def receipts(tmp_path: Path, empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file for receipts, and the environment in which the shop runs."""
    path = tmp_path / "receipts.txt"
    monkeypatch.setenv("SHOP_RECEIPTS", str(path))
    monkeypatch.setenv("SCHEDULER_DATABASE", empty_dsn)
    return path


@pytest.fixture
def connection(empty_dsn: str) -> Iterator[Connection]:
    """A connection to a database with both schemas, set up from nothing."""
    scheduler.migrate(empty_dsn)
    with Connection.connect(empty_dsn, autocommit=True) as made:
        shop.create_schema(made)
        shop.create_schema(made)  # as often as one likes
        yield made


@contextmanager
def worker(dsn: str, app: Registry = shop.app) -> Iterator[None]:
    """A worker in a thread of this process."""
    running = Worker(app, dsn, slots=3, poll=timedelta(seconds=0.05))
    thread = Thread(target=running.run)
    thread.start()
    try:
        yield
    finally:
        running.stop()
        thread.join()


def statuses(connection: Connection) -> dict[str, list[str]]:
    """The statuses of all tasks, by kind."""
    rows = connection.execute(
        "select kind, array_agg(status order by id) from scheduler.tasks group by kind"
    ).fetchall()
    return dict(rows)


def all_completed(connection: Connection) -> bool:
    return all(set(of_kind) == {"completed"} for of_kind in statuses(connection).values())


def assert_done_once(connection: Connection, receipts: Path, orders: dict[int, int]) -> None:
    """Each order (id to cents) is booked, shipped and receipted, exactly once."""
    payments = connection.execute("select order_id, cents from shop.payments order by 1").fetchall()
    assert payments == sorted(orders.items())
    parcels = connection.execute("select order_id from shop.parcels order by 1").fetchall()
    assert parcels == [(order,) for order in sorted(orders)]
    written = [line.split(": ", 1)[1] for line in receipts.read_text().splitlines()]
    assert sorted(written) == sorted(f"order {order}, to {EMAIL}" for order in orders)


def test_an_order_is_booked_shipped_and_receipted_once(
    connection: Connection, empty_dsn: str, receipts: Path
) -> None:
    orders = {shop.place_order(connection, EMAIL, cents): cents for cents in (500, 1999)}
    with worker(empty_dsn):
        wait_for(lambda: all_completed(connection), "all tasks to be completed")
    assert_done_once(connection, receipts, orders)


def test_an_order_and_its_tasks_become_visible_together(
    connection: Connection, empty_dsn: str
) -> None:
    with Connection.connect(empty_dsn) as other, other.transaction():
        shop.place_order(other, EMAIL, 500)
        assert statuses(connection) == {}
        assert connection.execute("select from shop.orders").rowcount == 0
    assert statuses(connection) == {
        "book-payment": ["pending"],
        "send-receipt": ["pending"],
        "ship-parcel": ["pending"],
    }
    assert connection.execute("select from shop.orders").rowcount == 1


def test_an_order_that_is_rolled_back_leaves_no_task(connection: Connection) -> None:
    with connection.transaction(force_rollback=True):
        shop.place_order(connection, EMAIL, 500)
    assert statuses(connection) == {}
    assert connection.execute("select from shop.orders").rowcount == 0


def test_an_order_whose_payment_is_refused_is_not_taken(connection: Connection) -> None:
    with pytest.raises(ValueError, match="greater than 0"):
        shop.place_order(connection, EMAIL, 0)
    assert statuses(connection) == {}
    assert connection.execute("select from shop.orders").rowcount == 0


def test_a_parcel_waits_for_its_payment(
    connection: Connection, empty_dsn: str, receipts: Path
) -> None:
    order = shop.place_order(connection, EMAIL, 500)
    later = "update scheduler.tasks set next_run_at = %s where kind = 'book-payment'"
    connection.execute(later, ["2100-01-01T00:00:00Z"])

    def snoozed() -> bool:
        log = "select from scheduler.run_log where outcome = 'snoozed'"
        return connection.execute(log).rowcount > 0

    with worker(empty_dsn):
        wait_for(snoozed, "the parcel to be put off")
        assert connection.execute("select from shop.parcels").rowcount == 0
        connection.execute(later, ["2000-01-01T00:00:00Z"])
        wait_for(lambda: all_completed(connection), "all tasks to be completed")
    assert_done_once(connection, receipts, {order: 500})


def test_the_commands_of_its_first_lines_work(
    empty_dsn: str, receipts: Path, tmp_path: Path
) -> None:
    assert shop.__doc__ is not None
    lines = [line.split() for line in shop.__doc__.splitlines()]
    programs = Path(sys.executable).parent
    migrate, place, work = (
        [str(programs / line[0]), *line[1:]]
        for line in lines
        if line[:1] in (["scheduler"], ["python"])
    )
    subprocess.run(migrate, cwd=ROOT, check=True, capture_output=True)
    subprocess.run(place, cwd=ROOT, check=True, capture_output=True)
    messages = tmp_path / "messages"
    with messages.open("wb") as stderr:
        running = subprocess.Popen(work, cwd=ROOT, stderr=stderr)
    try:
        with Connection.connect(empty_dsn, autocommit=True) as connection:
            wait_for(
                lambda: all_completed(connection) or running.poll() is not None,
                "all tasks to be completed",
            )
            running.send_signal(signal.SIGTERM)
            assert running.wait(30) == 0, messages.read_text()
            assert_done_once(connection, receipts, {1: 1999})
    finally:
        running.kill()
        running.wait()
    assert "Traceback" not in messages.read_text()


def test_the_office_does_its_scheduled_work(
    empty_dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    letters, text = tmp_path / "letters.txt", tmp_path / "book.txt"
    monkeypatch.setenv("OFFICE_LETTERS", str(letters))
    monkeypatch.setenv("OFFICE_MAIL_TOKEN", "open sesame")
    text.write_text("one two three")
    scheduler.migrate(empty_dsn)
    with Connection.connect(empty_dsn, autocommit=True) as connection:
        office.create_schema(connection)
        assert office.invoice(connection, 17)
        assert not office.invoice(connection, 17)
        enqueue(connection, office.search_file, office.Search(pattern=r"\w+", file=text))
        assert office.withdraw(connection, office.urgent(connection, 18))
        office.urgent(connection, 19)
        pulses = "select at from office.reports where title = 'pulse'"
        with worker(empty_dsn, office.app):
            wait_for(lambda: connection.execute(pulses).rowcount >= 3, "three pulses")
            over = ["completed", "cancelled", "completed"]
            wait_for(lambda: statuses(connection)["post-letter"] == over, "the letters")
            wait_for(text.with_suffix(".found").exists, "the search to end")
        posted = ["invoice 17, stamped", "invoice 19, stamped"]
        assert sorted(letters.read_text().splitlines()) == posted
        assert text.with_suffix(".found").read_text() == "3\n"
        times = [at for (at,) in connection.execute(pulses).fetchall()]
        assert len(set(times)) == len(times)
        assert all(at.microsecond == 0 for at in times)
        assert [(it.name, it.state) for it in list_schedules(connection)] == [
            ("nightly", "active"),
            ("pulse", "active"),
        ]


def test_the_office_says_who_may_do_what(empty_dsn: str) -> None:
    scheduler.migrate(empty_dsn)
    with Connection.connect(empty_dsn, autocommit=True) as connection:
        office.set_rules(connection)
        with pytest.raises(AccessError, match="postgres may not enqueue tasks of kind post-letter"):
            office.invoice(connection, 17)
        assert sources(connection) == [Source("web", 1000, 0)]


def test_a_schedule_that_is_gone_from_the_code_is_paused_and_kept(empty_dsn: str) -> None:
    scheduler.migrate(empty_dsn)
    with Connection.connect(empty_dsn, autocommit=True) as connection:
        declare_schedules(connection, office.app)
        declare_schedules(connection, Registry(application="office"))
        assert [it.state for it in list_schedules(connection)] == ["not declared"] * 2
