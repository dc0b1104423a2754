"""The stage: real sessions moved step by step, and everything that can happen to them."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from select import select
from threading import Timer

import psycopg
import pytest
from psycopg import Connection
from psycopg.pq.abc import PGresult

from chaos.explore.errors import ExplorerError, ScheduleError
from chaos.explore.program import Actor, Ending, Program
from chaos.explore.schedule import parse
from chaos.explore.stage import Stage


def install(connection: Connection) -> None:
    connection.execute(
        "create table item (id integer primary key, n integer not null,"
        " constraint small check (n < 100));"
        " create table pair (a integer unique deferrable initially deferred)"
    )


def setup(connection: Connection) -> None:
    connection.execute("delete from pair; delete from item; insert into item values (1, 0), (2, 0)")


@contextmanager
def staged(dsn: str, *, autocommit: bool = True, **actors: Actor) -> Iterator[Stage]:
    program = Program(setup, actors, lambda _: None, install=install, autocommit=autocommit)
    with Stage(dsn, program) as stage:
        yield stage


def play(stage: Stage, schedule: str) -> list[str]:
    """Run these steps; what each did."""
    stage.begin()
    for choice in parse(schedule):
        stage.take(choice)
    done = [event.did for event in stage.events]
    stage.finish()
    return done


def numbers(stage: Stage) -> list[int]:
    return [n for (n,) in stage.admin.execute("select n from item order by id")]


def add(connection: Connection) -> None:
    connection.execute("update item set n = n + %s where id = 1", [1])


def add_simply(connection: Connection) -> None:
    connection.execute("update item set n = n + 1 where id = 1")


def take_one(connection: Connection) -> object:
    return connection.execute(
        "update item set n = n + 1 where id ="
        " (select id from item where n = 0 order by id limit %s for update skip locked)"
        " returning id",
        [1],
    ).fetchone()


def one_after_other(connection: Connection) -> None:
    for item in (1, 2):
        connection.execute("update item set n = n + 1 where id = %s", [item])
    connection.commit()


def other_after_one(connection: Connection) -> None:
    for item in (2, 1):
        connection.execute("update item set n = n + 1 where id = %s", [item])
    connection.commit()


@pytest.mark.parametrize("body", [add, add_simply], ids=["extended", "simple protocol"])
def test_in_autocommit_mode_execute_and_commit_are_two_steps(empty_dsn: str, body: Actor) -> None:
    with staged(empty_dsn, a=body) as stage:
        stage.begin()
        stage.take(parse("a")[0])
        assert stage.commits_next("a")
        assert numbers(stage) == [0, 0]
        stage.take(parse("a")[0])
        assert numbers(stage) == [1, 0]
        assert stage.live() == []


def test_an_execute_that_holds_its_lock_is_really_skipped(empty_dsn: str) -> None:
    with staged(empty_dsn, a=take_one, b=take_one) as stage:
        play(stage, "a b b a")
        assert [ending.returned for ending in stage.endings().values()] == [(1,), (2,)]


def test_a_statement_that_waits_goes_on_in_the_step_that_lets_it(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add, b=add) as stage:
        stage.begin()
        for choice in parse("a b"):
            stage.take(choice)
        assert stage.events[-1].waiting == ("b",)
        assert stage.ready() == ["a"]
        with pytest.raises(ScheduleError, match="b waits for a lock"):
            stage.take(parse("b")[0])
        stage.take(parse("a")[0])
        assert stage.ready() == ["b"]
        assert "b: update item" in stage.events[-1].did
        stage.take(parse("b")[0])
        assert numbers(stage) == [2, 0]


def test_advisory_locks_block_too(empty_dsn: str) -> None:
    def locker(connection: Connection) -> None:
        connection.execute("select pg_advisory_xact_lock(%s)", [7])
        connection.commit()

    with staged(empty_dsn, autocommit=False, a=locker, b=locker) as stage:
        assert play(stage, "a b a b")[1].startswith("b waits")


@pytest.mark.parametrize(("schedule", "victim"), [("a b a b b", "b"), ("a b b a a", "a")])
def test_of_a_deadlock_the_later_one_is_refused_every_time(
    empty_dsn: str, schedule: str, victim: str
) -> None:
    with staged(empty_dsn, autocommit=False, a=one_after_other, b=other_after_one) as stage:
        for _ in range(5):
            done = play(stage, schedule)
            assert f"{victim}: update item set n = n + 1 where id = $1 -> SQLSTATE 40P01" in done[3]
            assert isinstance(stage.endings()[victim].error, psycopg.errors.DeadlockDetected)


def test_a_serialization_failure_is_the_servers(empty_dsn: str) -> None:
    def body(connection: Connection) -> None:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select n from item where id = %s", [1])
        add(connection)
        connection.commit()

    with staged(empty_dsn, autocommit=False, a=body, b=body) as stage:
        play(stage, "a b a a b b")
        assert isinstance(stage.endings()["b"].error, psycopg.errors.SerializationFailure)


def test_a_failed_statement_needs_no_commit(empty_dsn: str) -> None:
    def too_much(connection: Connection) -> None:
        for sql in ("update item set n = 100", "update item set n = 100 where id > %s"):
            with pytest.raises(psycopg.errors.CheckViolation):
                connection.execute(sql.encode(), [0] if "%" in sql else None)

    with staged(empty_dsn, a=too_much) as stage:
        assert [did[-5:] for did in play(stage, "a a")] == ["23514", "23514"]
        assert stage.endings()["a"].ok


@pytest.mark.parametrize("values", ["(1), (1)", "(%s), (1)"], ids=["simple protocol", "extended"])
def test_a_commit_that_fails_is_told_as_such(empty_dsn: str, values: str) -> None:
    def twice(connection: Connection) -> None:
        connection.execute(
            f"insert into pair values {values}".encode(), [1] if "%" in values else None
        )

    with staged(empty_dsn, a=twice) as stage:
        assert play(stage, "a a")[1] == "a: commit -> SQLSTATE 23505"
        assert isinstance(stage.endings()["a"].error, psycopg.errors.UniqueViolation)


def test_statements_in_a_pipeline_are_steps_of_their_own(empty_dsn: str) -> None:
    def pipelined(connection: Connection) -> None:
        with connection.pipeline(), connection.transaction():
            add(connection)
            add(connection)

    with staged(empty_dsn, a=pipelined, b=add) as stage:
        done = play(stage, "a a b a b")
        assert done[2].startswith("b waits")
        assert numbers(stage) == [3, 0]


def test_what_is_flushed_without_an_execute_is_answered(empty_dsn: str) -> None:
    def described(connection: Connection) -> int:
        pgconn = connection.pgconn

        def result() -> PGresult | None:
            while pgconn.is_busy():
                select([pgconn.socket], [], [])
                pgconn.consume_input()
            return pgconn.get_result()

        pgconn.enter_pipeline_mode()
        pgconn.send_prepare(b"items", b"select id, n from item")
        pgconn.send_describe_prepared(b"items")
        pgconn.send_flush_request()
        pgconn.flush()
        _prepared, _, columns, _ = [result() for _ in range(4)]
        pgconn.pipeline_sync()
        result()
        pgconn.exit_pipeline_mode()
        assert columns is not None
        return columns.nfields

    with staged(empty_dsn, a=described) as stage:
        stage.begin()
        assert stage.endings()["a"] == Ending(2)


def test_a_crash_before_a_step_undoes_what_is_not_committed(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add, b=add) as stage:
        play(stage, "a b a! b")
        assert numbers(stage) == [1, 0]
        assert stage.endings()["a"].crashed
        assert stage.endings()["b"].ok


@pytest.mark.parametrize("schedule", ["a a!!", "a!!", "a a?", "a?"])
@pytest.mark.parametrize("body", [add, add_simply], ids=["extended", "simple protocol"])
def test_what_the_server_got_is_done_though_nobody_hears_of_it(
    empty_dsn: str, body: Actor, schedule: str
) -> None:
    with staged(empty_dsn, a=body) as stage:
        play(stage, schedule)
        assert numbers(stage) == [1, 0]
        ending = stage.endings()["a"]
        assert ending.crashed != isinstance(ending.error, psycopg.OperationalError)


def test_what_a_dead_client_left_waiting_takes_effect_after_the_commit_that_it_waited_for(
    empty_dsn: str,
) -> None:
    with staged(empty_dsn, a=add, b=add, c=add) as stage:
        stage.begin()
        for choice in parse("a b c b! c!!"):
            stage.take(choice)
            assert not stage.follow()
        assert numbers(stage) == [0, 0]
        stage.take(parse("a")[0])
        # Each was sent together with its Sync, and commits by itself.
        assert numbers(stage) == [1, 0]
        assert [stage.follow(), *numbers(stage)] == [True, 2, 0]
        assert [stage.follow(), *numbers(stage)] == [True, 3, 0]
        assert not stage.follow()
        done = "update item set n = n + $1 where id = 1 -> UPDATE 1, and what followed it"
        first, *others = stage.events[-1].did.split("; ")
        assert (first, sorted(others)) == ("a: commit", [f"b: {done}", f"c: {done}"])
        stage.finish()


@pytest.mark.parametrize("fault", ["!!", "?"])
@pytest.mark.parametrize("body", [add, add_simply], ids=["extended", "simple protocol"])
def test_what_was_sent_just_before_the_connection_broke_may_have_to_wait_as_well(
    empty_dsn: str, body: Actor, fault: str
) -> None:
    with staged(empty_dsn, a=body, b=body) as stage:
        stage.begin()
        for choice in parse(f"a b{fault} a"):
            assert not stage.follow()
            stage.take(choice)
        assert numbers(stage) == [1, 0]
        assert [stage.follow(), *numbers(stage)] == [True, 2, 0]
        stage.finish()


def test_a_stage_that_cannot_be_set_leaves_nothing_open(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add):
        pass
    with pytest.raises(psycopg.errors.DuplicateTable), staged(empty_dsn, a=add):
        pass
    gc.collect()  # what was left open would be told here


def hold(connection: Connection) -> None:
    """Lock a row, and leave it as it is: those who wait for it get it in the order in which they
    came. Of a row that was changed the waiters must look for the new version, and they race."""
    connection.execute("select from item where id = 1 for update")


def test_what_waits_for_a_dead_clients_statement_goes_on_after_it(empty_dsn: str) -> None:
    with staged(empty_dsn, a=hold, b=add, c=add) as stage:
        stage.begin()
        for choice in parse("a b b! c a"):
            stage.take(choice)
        assert stage.ready() == []
        assert stage.follow()
        assert stage.ready() == ["c"]
        stage.take(parse("c")[0])
        assert numbers(stage) == [2, 0]
        stage.finish()


def test_a_terminated_session_is_rolled_back_and_its_actor_told(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add, b=add) as stage:
        play(stage, "a b b^ a^")
        assert numbers(stage) == [0, 0]
        for ending in stage.endings().values():
            assert isinstance(ending.error, psycopg.errors.AdminShutdown)


def test_a_session_that_is_terminated_while_it_waits_ends_in_that_step(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add, b=add) as stage:
        stage.begin()
        for choice in parse("a b"):
            stage.take(choice)
        [(waits,)] = stage.admin.execute("select pid from pg_locks where not granted").fetchall()
        os.kill(waits, signal.SIGSTOP)  # it hears of its end late
        hears = Timer(0.2, os.kill, (waits, signal.SIGCONT))
        hears.start()
        stage.take(parse("b^")[0])
        hears.join()
        assert stage.events[-1].did.endswith("-> SQLSTATE 57P01")
        assert stage.live() == ["a"]


def test_an_actor_that_lost_its_connection_may_open_another(empty_dsn: str) -> None:
    def stubborn(connection: Connection) -> str:
        try:
            add(connection)
        except psycopg.OperationalError:
            with psycopg.connect(connection.info.dsn, autocommit=True) as another:
                add(another)
            return "twice"
        return "once"

    with staged(empty_dsn, a=stubborn) as stage:
        play(stage, "a a? a a")
        assert stage.endings()["a"].returned == "twice"
        assert numbers(stage) == [2, 0]
        play(stage, "a a! ")
        assert stage.endings()["a"].crashed
        assert numbers(stage) == [0, 0]
        play(stage, "a a")
        assert stage.endings()["a"].returned == "once"


def test_what_an_actor_leaves_open_is_rolled_back_in_a_step(empty_dsn: str) -> None:
    with staged(empty_dsn, autocommit=False, a=add) as stage:
        assert play(stage, "a a")[1] == "a: rollback"
        assert numbers(stage) == [0, 0]


def test_no_lock_or_setting_of_a_session_outlives_its_schedule(empty_dsn: str) -> None:
    def messy(connection: Connection) -> object:
        connection.execute("select pg_advisory_lock(%s)", [1])
        connection.execute("set search_path = nowhere, public")
        connection.commit()
        connection.autocommit = True
        connection.execute("create temporary table item (n integer)")
        return connection.execute("select count(*) from public.item").fetchone()

    with staged(empty_dsn, autocommit=False, a=messy, b=add) as stage:
        for _ in range(2):
            stage.begin()
            while stage.ready():
                stage.take(parse(stage.ready()[0])[0])
            assert stage.endings()["a"].error is None
            assert stage.endings()["b"].error is None
            stage.finish()


def test_a_schedule_left_in_the_middle_leaves_nothing_behind(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add, b=add) as stage:
        play(stage, "a b")
        assert play(stage, "a a b b")[-1] == "b: commit"
        assert numbers(stage) == [2, 0]


def test_a_setup_that_fails_leaves_no_answers_to_the_actors_of_the_next_schedule(
    empty_dsn: str,
) -> None:
    refusals = iter([None, ScheduleError("the setup is refused"), None])

    def refused_once(connection: Connection) -> None:
        setup(connection)
        refusal = next(refusals)
        if refusal is not None:
            raise refusal

    program = Program(refused_once, {"a": take_one}, install=install, autocommit=True)
    with Stage(empty_dsn, program) as stage:
        play(stage, "a a")
        with pytest.raises(ScheduleError, match="the setup is refused"):
            stage.begin()
        play(stage, "a a")
        assert stage.endings()["a"] == Ending((1,))


def test_an_actor_that_ends_without_its_last_answer_is_told(empty_dsn: str) -> None:
    def locks(connection: Connection) -> None:
        connection.execute("select pg_advisory_lock(%s)", [1])

    def asks_and_goes(connection: Connection) -> None:
        connection.pgconn.send_query_params(b"select pg_advisory_lock(1)", None)
        connection.pgconn.flush()

    with staged(empty_dsn, a=locks, b=asks_and_goes) as stage:
        play(stage, "a a b")
        with pytest.raises(ExplorerError, match=r"b ended .*: select pg_advisory_lock\(1\)$"):
            stage.begin()


def test_copy_is_refused_in_so_many_words(empty_dsn: str) -> None:
    def copies(connection: Connection) -> None:
        with connection.cursor().copy("copy item to stdout") as copy:
            list(copy)

    with staged(empty_dsn, a=copies) as stage, pytest.raises(ExplorerError, match="uses COPY"):
        play(stage, "a")


def test_an_unknown_actor_or_a_clock_that_is_not_there_is_named(empty_dsn: str) -> None:
    with staged(empty_dsn, a=add) as stage:
        with pytest.raises(ScheduleError, match="no actor 'z'; there are a"):
            play(stage, "z")
        with pytest.raises(ScheduleError, match="advance"):
            play(stage, "+60s")
        with pytest.raises(ScheduleError, match="a has ended"):
            play(stage, "a a a")


def test_only_a_superuser_can_explore(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute("create role explorer_nobody login")
        try:
            dsn = psycopg.conninfo.make_conninfo(empty_dsn, user="explorer_nobody")
            with pytest.raises(ExplorerError, match="superuser"), staged(dsn, a=add):
                pass
        finally:
            connection.execute("drop role explorer_nobody")


def leave_it_open(connection: Connection) -> None:
    connection.execute("update item set n = n + %s where id = 1", [1])
    connection.close()


def test_what_an_actor_leaves_open_at_its_end_keeps_its_locks_until_the_server_hears_of_it(
    empty_dsn: str,
) -> None:
    with staged(empty_dsn, autocommit=False, a=leave_it_open, b=add) as stage:
        stage.begin()
        for choice in parse("a b a"):
            stage.take(choice)
        assert [event.waiting for event in stage.events] == [(), ("b",), ()]
        assert "b: update item set n = n + $1 where id = 1 -> UPDATE 1" in stage.events[-1].did
        with pytest.raises(ScheduleError, match="a has ended"):
            stage.take(parse("a!")[0])


def test_an_actor_that_closes_a_connection_goes_on_at_once(empty_dsn: str) -> None:
    with staged(empty_dsn, autocommit=False, a=leave_it_open) as stage:
        for _ in range(20):
            stage.begin()
            stage.take(parse("a")[0])
            assert (stage.live(), stage.ready()) == ([], ["a"])
