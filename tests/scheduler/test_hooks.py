"""Dead-letter hooks: told of every death at least once, whoever dies in between, and never in the
queue's way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread

import psycopg
import pytest
from psycopg import Connection

from chaos.life.clock import Clock
from scheduler import AccessError, requeue
from scheduler.cli import main
from scheduler.dead_letter_hooks import (
    FIRST_DELAY,
    HOLD,
    LARGEST_PAYLOAD,
    LONGEST_DELAY,
    MOST_ATTEMPTS,
    Death,
    HookCounts,
    delivered,
    failed,
    forget,
    hooks,
    register,
    retry,
    take,
)
from scheduler.deliver import Deliverer, Tell
from scheduler.finish import fail
from scheduler.lease import reclaim
from scheduler.retry import RetryPolicy
from scheduler.roles import create_roles
from scheduler.statements import statement
from tests.scheduler.roles import logged_in
from tests.scheduler.working import LEASE, MICROSECOND, kind, nodes, put, row, take_one
from tests.waiting import wait_for

ONCE = kind(retry=RetryPolicy(max_attempts=1))


def die(db: Connection, error: str = "no") -> int:
    """The id of a task that has just failed on its only attempt."""
    [number] = put(db, 1, ONCE)
    fail(db, [take_one(db).lease], [error])
    return number


def told(db: Connection, hook: str = "pager") -> Death:
    """Take a delivery that is due and make it."""
    found = take(db, hook)
    assert found is not None
    delivered(db, found)
    return found.death


# What is to be delivered


def test_a_hook_is_told_of_deaths_from_its_registration_on(db: Connection) -> None:
    die(db)
    register(db, "pager")
    register(db, "pager")
    number = die(db, "the reason")
    death = told(db)
    assert (death.task, death.token, death.kind, death.payload) == (number, 1, "work", "0")
    assert (death.attempts, death.last_error) == (1, "the reason")
    assert death.died_at == row(db, number)["finished_at"]
    assert take(db, "pager") is None


def test_a_task_that_dies_by_its_lease_is_told_of_too(db: Connection, clock: Clock) -> None:
    register(db, "pager")
    [number] = put(db, 1, ONCE)
    take_one(db)
    clock.advance(LEASE + MICROSECOND)
    reclaim(db, 10)
    assert (told(db).task, take(db, "pager")) == (number, None)


def test_each_death_of_a_task_is_told_under_a_key_of_its_own(db: Connection) -> None:
    register(db, "pager")
    number = die(db)
    requeue(db, [number])
    fail(db, [take_one(db).lease], ["again"])
    first, second = told(db), told(db)
    assert (first.task, second.task) == (number, number)
    assert first.key != second.key
    assert (first.last_error, second.last_error) == ("no", "again")


def test_each_hook_is_told(db: Connection) -> None:
    register(db, "pager")
    register(db, "tickets")
    number = die(db)
    assert told(db, "pager").task == number
    assert take(db, "pager") is None
    assert told(db, "tickets").task == number


def test_a_death_that_is_rolled_back_is_not_told_of(db: Connection, dsn: str) -> None:
    register(db, "pager")
    with psycopg.connect(dsn) as other:
        die(other)
        other.rollback()
    assert take(db, "pager") is None


def test_without_a_hook_nothing_piles_up(db: Connection) -> None:
    die(db)
    assert db.execute("select count(*) from scheduler.deliveries").fetchone() == (0,)


@pytest.mark.parametrize("name", ["", "two words", "x" * 101, "a\0", None])
def test_what_cannot_be_a_hooks_name_is_refused(db: Connection, name: str) -> None:
    with pytest.raises(ValueError, match="a hook has a name of"):
        register(db, name)


def test_a_hook_that_is_forgotten_is_told_nothing_more(db: Connection) -> None:
    register(db, "pager")
    die(db)
    assert forget(db, "pager")
    assert not forget(db, "pager")
    die(db)
    assert take(db, "pager") is None
    assert db.execute(
        "select action, tasks, detail from scheduler.audit where action like '%hook' order by id"
    ).fetchall() == [("add-hook", 0, "pager"), ("forget-hook", 1, "pager")]


def test_a_role_that_only_reads_may_not_register_one(db: Connection, dsn: str) -> None:
    create_roles(dsn)
    with (
        logged_in(db, dsn, "scheduler_reader") as reader,
        pytest.raises(AccessError, match="grant scheduler_operator"),
    ):
        register(reader, "pager")


def test_an_operator_may_do_all_of_it(db: Connection, dsn: str) -> None:
    create_roles(dsn)
    with logged_in(db, dsn, "scheduler_operator") as operator:
        register(operator, "pager")
        first, second = die(db), die(db)
        assert told(operator).task == first
        found = take(operator, "pager")
        assert found is not None
        failed(operator, found, "away")
        assert hooks(operator) == [HookCounts("pager", 1, 0, "away")]
        assert retry(operator, "pager") == 0
        assert forget(operator, "pager")
    assert second


# Attempts


def test_a_delivery_that_is_under_way_is_not_taken_twice_until_its_time_is_over(
    db: Connection, clock: Clock
) -> None:
    register(db, "pager")
    die(db)
    first = take(db, "pager")
    assert first is not None
    assert take(db, "pager") is None
    clock.advance(HOLD)
    second = take(db, "pager")
    assert second is not None
    assert (second.id, second.death, second.attempt) == (first.id, first.death, 2)
    failed(db, first, "late")  # by the one that has lost it
    assert hooks(db) == [HookCounts("pager", 1, 0, None)]
    delivered(db, first)  # it was, so the other need not be made
    assert hooks(db) == [HookCounts("pager", 0, 0, None)]


def test_two_deliverers_take_different_ones_while_the_first_has_not_committed(
    db: Connection, dsn: str
) -> None:
    register(db, "pager")
    numbers = {die(db), die(db)}
    with psycopg.connect(dsn) as other:
        first = take(other, "pager")
        second = take(db, "pager")
        third = take(db, "pager")
    assert first is not None
    assert second is not None
    assert third is None
    assert {first.death.task, second.death.task} == numbers


def test_what_fails_waits_twice_as_long_each_time_and_is_given_up_in_the_end(
    db: Connection, clock: Clock
) -> None:
    register(db, "pager")
    die(db)
    for number in range(1, MOST_ATTEMPTS + 1):
        found = take(db, "pager")
        assert found is not None
        assert found.attempt == number
        failed(db, found, f"away {number}")
        delay = min(FIRST_DELAY * 2 ** (number - 1), LONGEST_DELAY)
        clock.advance(delay - MICROSECOND)
        assert take(db, "pager") is None
        clock.advance(MICROSECOND)
    assert take(db, "pager") is None
    assert hooks(db) == [HookCounts("pager", 0, 1, f"away {MOST_ATTEMPTS}")]
    assert retry(db, "pager") == 1
    told(db)
    assert hooks(db) == [HookCounts("pager", 0, 0, None)]


def test_a_death_that_kills_each_deliverer_is_given_up_too(db: Connection, clock: Clock) -> None:
    register(db, "pager")
    die(db)
    for _ in range(MOST_ATTEMPTS):
        assert take(db, "pager") is not None
        clock.advance(timedelta(days=1))
    assert take(db, "pager") is None
    assert [(it.waiting, it.given_up) for it in hooks(db)] == [(0, 1)]


def test_a_look_for_a_due_delivery_reads_none_that_was_given_up(db: Connection) -> None:
    register(db, "pager")
    db.execute(
        "insert into scheduler.deaths (task_id, lease_token, kind, attempts, last_error, died_at)"
        " select n, 1, 'work', 1, 'no', now() from generate_series(1, 3000) as n"
    )
    db.execute(
        "insert into scheduler.deliveries (hook, death, attempts, given_up, next_at)"
        " select 'pager', id, 20, true, '2020-01-01' from scheduler.deaths"
    )
    db.execute("vacuum analyze scheduler.deliveries")
    waiting = die(db)
    values = {"hook": "pager", "most_attempts": MOST_ATTEMPTS, "hold": "2 minutes"}
    ask = b"explain (analyze, buffers, format json) " + statement("take_delivery")
    for left in (1, 0):  # due, and given up or taken
        [[[explained]]] = db.execute(ask, values, prepare=False).fetchall()
        [look] = [it for it in nodes(explained["Plan"]) if it["Node Type"] == "LockRows"]
        assert look["Actual Rows"] == left
        [scan] = [it for it in nodes(look) if "Scan" in it["Node Type"]]
        assert scan["Index Name"] == "deliveries_due"
        assert scan.get("Rows Removed by Filter", 0) == 0
        # By rows, the table has some thirty pages of what was given up.
        assert scan["Shared Hit Blocks"] + scan["Shared Read Blocks"] < 10
    taken = db.execute("select attempts from scheduler.deliveries where not given_up").fetchall()
    assert taken == [(1,)]
    assert waiting > 0


def test_a_death_that_fails_does_not_hold_up_the_next(db: Connection) -> None:
    register(db, "pager")
    first, second = die(db), die(db)
    found = take(db, "pager")
    assert found is not None
    assert found.death.task == first
    failed(db, found, "away")
    assert told(db).task == second


def test_a_failure_puts_off_no_other_delivery_that_is_under_way(
    db: Connection, clock: Clock
) -> None:
    register(db, "pager")
    first, _ = die(db), die(db)
    one, other = take(db, "pager"), take(db, "pager")
    assert one is not None
    assert other is not None
    failed(db, one, "away")
    clock.advance(FIRST_DELAY)
    assert told(db).task == first
    assert take(db, "pager") is None


def test_what_is_due_for_longest_is_told_first_and_of_one_moment_the_first_to_die(
    db: Connection, clock: Clock
) -> None:
    register(db, "pager")
    first, second, third = (die(db) for _ in range(3))
    db.execute(
        "update scheduler.deliveries set next_at = next_at - interval '1 s'"
        " where id = (select max(id) from scheduler.deliveries)"
    )
    # The index has them in this order already, whoever asks for which.
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    assert [told(db).task for _ in range(3)] == [third, first, second]


def test_each_hook_is_counted_for_itself_with_the_error_of_its_latest_failure(
    db: Connection,
) -> None:
    made = (  # hook, whether it was given up, the minute and the error; by id
        *(("pager", False, 4, "a"), ("pager", False, 5, None)),
        *(("pager", True, 2, "b"), ("pager", True, 3, "c")),
        *(("desk", False, 2, "first"), ("desk", False, 2, "second")),
        *(("mail", False, 3, "q"), ("mail", True, 4, "p"), ("mail", True, 5, None)),
        *(("tickets", False, 2, "w1"), ("tickets", False, 4, "w2"), ("tickets", True, 3, "g")),
        *(("wiki", False, 1, "old"), ("wiki", True, 9, "x"), ("wiki", True, 9, "new")),
    )
    for hook in ("nobody", *(hook for hook, _, _, _ in made)):
        register(db, hook)
    for death, (hook, given_up, minute, error) in enumerate(made, start=1):
        db.execute(
            "insert into scheduler.deaths (task_id, lease_token, kind, attempts, last_error,"
            " died_at) values (%s, 1, 'work', 1, 'no', now())",
            [death],
        )
        db.execute(
            "insert into scheduler.deliveries (hook, death, attempts, given_up, next_at,"
            " last_error) select %s, max(id), 1, %s, %s, %s from scheduler.deaths",
            [hook, given_up, f"2026-01-01 00:0{minute}+00", error],
        )
    db.execute("set enable_indexscan = off; set enable_bitmapscan = off")
    assert hooks(db, 1) == [
        HookCounts("desk", 1, 0, "second"),
        HookCounts("mail", 1, 1, "q"),
        HookCounts("nobody", 0, 0, None),
        HookCounts("pager", 1, 1, "c"),
        HookCounts("tickets", 1, 1, "w2"),
        HookCounts("wiki", 1, 1, "new"),
    ]
    counts = {it.hook: (it.waiting, it.given_up) for it in hooks(db)}
    assert [*counts] == ["desk", "mail", "nobody", "pager", "tickets", "wiki"]
    assert [*counts.values()] == [(2, 0), (1, 2), (0, 0), (2, 2), (2, 1), (1, 2)]
    latest = {it.hook: it.last_error for it in hooks(db)}
    assert (latest["mail"], latest["pager"], latest["tickets"]) == ("p", "a", "w2")


def test_what_is_tried_again_is_due_at_once_with_all_attempts_and_no_other_hooks(
    db: Connection, clock: Clock
) -> None:
    register(db, "pager")
    register(db, "tickets")
    die(db)
    db.execute(
        "update scheduler.deliveries set given_up = true, attempts = %s,"
        " next_at = scheduler.now() + interval '1 day'",
        [MOST_ATTEMPTS],
    )
    assert retry(db, "pager") == 1
    assert [(it.hook, it.given_up) for it in hooks(db)] == [("pager", 0), ("tickets", 1)]
    found = take(db, "pager")
    assert found is not None
    assert found.attempt == 1


# The message


def test_a_payload_is_sent_as_it_is_stored_unless_it_is_large_or_gone(db: Connection) -> None:
    register(db, "pager")
    die(db)
    die(db)
    die(db)
    db.execute("update scheduler.tasks set payload = '0.12345678901234567890' where id = 1")
    db.execute(
        "update scheduler.tasks set payload = to_jsonb(repeat('x', %s)) where id = 2",
        [LARGEST_PAYLOAD],
    )
    db.execute("delete from scheduler.tasks where id = 3")
    small, large, gone = told(db).message(), told(db).message(), told(db).message()
    assert b'"payload": 0.12345678901234567890}' in small
    assert json.loads(large)["payload"] is None
    assert json.loads(large)["payload_bytes"] == LARGEST_PAYLOAD + 2
    assert json.loads(gone)["payload_bytes"] is None
    assert json.loads(gone)["kind"] == "work"


# The deliverer


@contextmanager
def delivering(dsn: str, tell: Tell) -> Iterator[Deliverer]:
    """A deliverer at work in a thread; at the end it is stopped."""
    deliverer = Deliverer(dsn, "pager", tell, poll=0.01)
    thread = Thread(target=deliverer.run)
    thread.start()
    try:
        yield deliverer
    finally:
        deliverer.stop()
        thread.join(30)
    assert not thread.is_alive()


def test_a_deliverer_tells_what_waits_and_what_comes(db: Connection, dsn: str) -> None:
    seen: list[int] = []
    register(db, "pager")
    numbers = [die(db) for _ in range(3)]
    with delivering(dsn, lambda death: seen.append(death.task)):
        wait_for(lambda: len(seen) == 3, "what waits")
        numbers.append(die(db))
        wait_for(lambda: len(seen) == 4, "what comes")
        wait_for(lambda: hooks(db)[0].waiting == 0, "it to be noted")
    assert seen == numbers


def test_a_deliverer_that_dies_after_telling_tells_again_under_the_same_key(
    db: Connection, dsn: str, clock: Clock
) -> None:
    class Killed(BaseException):
        pass

    keys: list[str] = []

    def tell(death: Death) -> None:
        keys.append(death.key)
        if len(keys) == 1:
            raise Killed

    register(db, "pager")
    die(db)
    deliverer = Deliverer(dsn, "pager", tell)
    with pytest.raises(Killed):
        deliverer.turn(db)
    assert deliverer.turn(db) == 1.0  # nothing is due
    clock.advance(HOLD)
    assert deliverer.turn(db) == 0.0
    assert len(keys) == 2
    assert len(set(keys)) == 1
    assert hooks(db)[0].waiting == 0


def test_a_deliverer_pauses_for_longer_the_more_fail_in_a_row(
    db: Connection, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    away = True

    def tell(death: Death) -> None:
        if away:
            raise RuntimeError("not\0now")

    register(db, "pager")
    deliverer = Deliverer(dsn, "pager", tell)
    for _ in range(8):
        die(db)
    assert [deliverer.turn(db) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]
    assert hooks(db)[0].last_error == "RuntimeError: not\N{REPLACEMENT CHARACTER}now"
    assert caplog.text.count("delivery-failed hook=pager") == 7
    away = False
    assert deliverer.turn(db) == 0
    away = True
    die(db)
    assert deliverer.turn(db) == 1


def test_a_receiver_that_hangs_holds_up_no_task(db: Connection, dsn: str) -> None:
    told_of: list[int] = []

    def hang(death: Death) -> None:
        told_of.append(death.task)
        wait_for(lambda: len(told_of) > 1, "the test to be over")

    register(db, "pager")
    die(db)
    with delivering(dsn, hang):
        wait_for(lambda: told_of, "the receiver to hang")
        db.execute("set lock_timeout = '2s'")
        for number in [die(db), die(db)]:
            assert row(db, number)["status"] == "dead"
        requeue(db, [told_of[0]])
        take_one(db)
        told_of.append(0)


def test_a_deliverer_outlives_its_session(db: Connection, dsn: str) -> None:
    seen: list[int] = []
    with delivering(dsn, lambda death: seen.append(death.task)):
        wait_for(lambda: hooks(db), "the hook")
        ended = db.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name = 'scheduler deliver pager'"
            " and datname = current_database()"
        ).fetchall()
        assert ended == [(True,)]
        number = die(db)
        wait_for(lambda: seen == [number], "the delivery")


# The commands


def test_a_function_is_called_until_a_signal(dsn: str, db: Connection, tmp_path: Path) -> None:
    (tmp_path / "tickets.py").write_text(
        "from pathlib import Path\n"
        "def open_ticket(death):\n"
        "    with Path('tickets').open('a') as file:\n"
        "        print(death.task, death.key, file=file)\n"
    )
    errors = tmp_path / "errors"
    with errors.open("w") as stderr:
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "scheduler", "dead-letter", "deliver"),
                *("--hook", "tickets", "--call", "tickets:open_ticket", "--log-format", "json"),
            ],
            cwd=tmp_path,
            env={**os.environ, "SCHEDULER_DATABASE": dsn},
            stderr=stderr,
        )
    try:
        wait_for(lambda: child.poll() is not None or hooks(db), "the hook", 60)
        number = die(db)
        wait_for(lambda: (tmp_path / "tickets").exists(), "the ticket")
        wait_for(lambda: hooks(db)[0].waiting == 0, "it to be noted")
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0
    finally:
        child.kill()
        child.wait()
    assert (tmp_path / "tickets").read_text().startswith(f"{number} ")
    events = [json.loads(line) for line in errors.read_text().splitlines()]
    assert [(it["event"], it.get("task")) for it in events] == [
        ("delivering", None),
        ("delivered", number),
    ]


def command(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["dead-letter", *arguments])
    return int(ended.value.code or 0), *capsys.readouterr()


def test_hooks_are_listed_tried_again_and_forgotten(
    dsn: str, db: Connection, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SCHEDULER_DATABASE", dsn)
    register(db, "pager")
    die(db)
    db.execute("update scheduler.deliveries set given_up = true, last_error = 'away'")
    _, out, _ = command("hooks", "list", "--json", capsys=capsys)
    assert json.loads(out)["hooks"] == [
        {"hook": "pager", "waiting": 0, "given_up": 1, "last_error": "away"}
    ]
    assert "pager" in command("hooks", "list", capsys=capsys)[1]
    assert command("hooks", "retry", "pager", capsys=capsys)[1] == "1 are due again\n"
    assert command("hooks", "forget", "pager", capsys=capsys)[0] == 0
    assert command("hooks", "forget", "pager", capsys=capsys) == (
        1,
        "",
        "error: there is no hook pager\n",
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give either --url, with --secret, or --call"),
        (["--url", "https://x", "--call", "a:b"], "give either"),
        (["--url", "https://x"], "a webhook needs --secret"),
        (["--url", "https://x", "--secret", "hunter2"], "a webhook's secret is a reference"),
        (["--url", "https://x", "--secret", "env:NOT_SET"], "the variable is not set"),
        (["--url", "ftp://x", "--secret", "env:HOME"], "the URL of a webhook is of the form"),
        (["--call", "json:nothing"], "json:nothing should be a plain function"),
        (["--call", "nothing"], "'nothing' does not name a function as module:attribute"),
    ],
)
def test_a_hook_that_cannot_be_meant_is_wrong_usage(
    options: list[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCHEDULER_DATABASE", "postgresql://127.0.0.1:1/nowhere")
    code, _, err = command("deliver", *options, capsys=capsys)
    assert (code, words in err) == (2, True), err
    assert "hunter2" not in err
