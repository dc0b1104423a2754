"""Async actors: everything means what it means of the same function written without `await`."""

from __future__ import annotations

import asyncio
from asyncio import AbstractEventLoop
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from functools import partial
from typing import cast

import psycopg
import pytest
from psycopg import AsyncConnection, Connection, IsolationLevel
from psycopg.rows import dict_row, tuple_row

from chaos.explore import Bounds, Program, crash_points, explore_program, replay
from chaos.explore.examples import (
    LOST_UPDATE,
    LOST_UPDATE_ASYNC,
    LOST_UPDATE_ASYNC_CORRECTED,
    LOST_UPDATE_CORRECTED,
    increment,
    increment_async,
)
from chaos.explore.program import Actor
from chaos.explore.run import Trace, run
from chaos.explore.schedule import parse
from chaos.explore.stage import Stage
from tests.chaos.explore import bodies
from tests.chaos.explore.traces import all_traces
from tests.looping import run_async

WRONG = (LOST_UPDATE, LOST_UPDATE_ASYNC)
CORRECTED = (LOST_UPDATE_CORRECTED, LOST_UPDATE_ASYNC_CORRECTED)
EVERY_FAULT = Bounds(preemptions=1, crashes=1, lost_replies=1, terminations=1)


def again(program: Program) -> Program:
    """The same, in a database that has its tables already."""
    return replace(program, install=None)


def compared(trace: Trace) -> tuple[object, ...]:
    """All of a schedule that two ways of writing an actor can have in common."""
    ends = {name: (e.returned, type(e.error), e.crashed) for name, e in trace.endings.items()}
    return trace.choices, trace.options, trace.events, trace.violation, trace.skipped, ends


@pytest.mark.parametrize("both", [WRONG, CORRECTED], ids=["wrong", "corrected"])
def test_both_ways_of_writing_a_program_have_the_same_certificate_and_failure(
    empty_dsn: str, both: tuple[Program, Program]
) -> None:
    bounds = Bounds(preemptions=None)
    plain = explore_program(both[0], bounds, empty_dsn)
    found = explore_program(again(both[1]), bounds, empty_dsn)
    assert replace(found.certificate, seconds=0) == replace(plain.certificate, seconds=0)
    assert found.outcome == plain.outcome
    assert (found.failure is None) == (plain.failure is None) == (both is CORRECTED)
    if found.failure is not None and plain.failure is not None:
        assert compared(found.failure) == compared(plain.failure)


@pytest.mark.slow
def test_both_have_the_same_schedules_and_traces_whatever_breaks(empty_dsn: str) -> None:
    plain, of_plain = all_traces(
        empty_dsn, replace(LOST_UPDATE_CORRECTED, at_end=None), EVERY_FAULT
    )
    found, of_found = all_traces(
        empty_dsn, again(replace(LOST_UPDATE_ASYNC_CORRECTED, at_end=None)), EVERY_FAULT
    )
    assert len(plain) > 100
    assert list(map(compared, found)) == list(map(compared, plain))
    assert not of_plain.degraded
    assert not of_found.degraded


def test_both_have_the_same_crash_points(empty_dsn: str) -> None:
    plain, found = (
        crash_points(replace(program, at_end=None, invariant=bodies.fine, install=install), dsn)
        for program, dsn, install in (
            (LOST_UPDATE, empty_dsn, LOST_UPDATE.install),
            (LOST_UPDATE_ASYNC, empty_dsn, None),
        )
    )
    assert found.points == plain.points
    assert found.exercised == found.enumerated == plain.exercised
    assert found.outcome == plain.outcome == "pass"


# What a function may do beside that: each written both ways.


def set_one(connection: Connection, to: int) -> None:
    connection.execute("update number set n = %s", [to])


async def set_one_async(connection: AsyncConnection, to: int) -> None:
    await connection.execute("update number set n = %s", [to])


def left_open(connection: Connection) -> None:
    set_one(connection, 1)


async def left_open_async(connection: AsyncConnection) -> None:
    await set_one_async(connection, 1)


def left_open_and_raises(connection: Connection) -> None:
    set_one(connection, 1)
    raise psycopg.DataError("no")


async def left_open_and_raises_async(connection: AsyncConnection) -> None:
    await set_one_async(connection, 1)
    raise psycopg.DataError("no")


def closed_while_open(connection: Connection) -> None:
    set_one(connection, 1)
    connection.close()


async def closed_while_open_async(connection: AsyncConnection) -> None:
    await set_one_async(connection, 1)
    await connection.close()


def reconnects(connection: Connection) -> str:
    try:
        set_one(connection, 1)
        connection.commit()
    except psycopg.OperationalError:
        with psycopg.connect(connection.info.dsn) as another:
            set_one(another, 2)
        return "at last"
    return "at once"


async def reconnects_async(connection: AsyncConnection) -> str:
    try:
        await set_one_async(connection, 1)
        await connection.commit()
    except psycopg.OperationalError:
        async with await AsyncConnection.connect(connection.info.dsn) as another:
            await set_one_async(another, 2)
        return "at last"
    return "at once"


def pipelined(connection: Connection) -> None:
    with connection.pipeline(), connection.transaction():
        set_one(connection, 1)
        set_one(connection, 2)


async def pipelined_async(connection: AsyncConnection) -> None:
    async with connection.pipeline(), connection.transaction():
        await set_one_async(connection, 1)
        await set_one_async(connection, 2)


TWINS: dict[str, tuple[Actor, Actor]] = {
    "leaves its transaction open": (left_open, left_open_async),
    "leaves it open and raises": (left_open_and_raises, left_open_and_raises_async),
    "closes in a transaction": (closed_while_open, closed_while_open_async),
    "connects again": (reconnects, reconnects_async),
    "a pipeline": (pipelined, pipelined_async),
}
SCHEDULES = ("a a b", "a b a", "a b a!", "a!!", "a a?", "a a? a a", "a^ b", "b a b^")


@pytest.mark.parametrize("twin", TWINS)
def test_whatever_a_function_does_both_leave_the_same_trace(empty_dsn: str, twin: str) -> None:
    traces = []
    for body, install in zip(TWINS[twin], (bodies.install, None), strict=True):
        program = replace(bodies.TWO, actors={"a": body, "b": body}, install=install)
        with Stage(empty_dsn, program) as stage:
            traces.append([compared(run(stage, parse(s), Bounds(), False)) for s in SCHEDULES])
    assert traces[0] == traces[1]


def test_connection_and_loop_are_kept_from_schedule_to_schedule_and_closed_in_the_end(
    empty_dsn: str,
) -> None:
    seen: list[AsyncConnection] = []

    async def looks(connection: AsyncConnection) -> AbstractEventLoop:
        seen.append(connection)
        await connection.execute("select n from number")
        return asyncio.get_running_loop()

    program = replace(bodies.TWO, actors={"a": looks})
    with Stage(empty_dsn, program) as stage:
        loops = [run(stage, [], Bounds()).endings["a"].returned for _ in range(3)]
        assert not seen[0].closed
    assert len(set(loops)) == len(set(map(id, seen))) == 1
    assert isinstance(loops[0], AbstractEventLoop)
    assert loops[0].is_closed()
    assert seen[0].closed


def modes(connection: Connection | AsyncConnection) -> tuple[object, ...]:
    return (
        connection.autocommit,
        connection.isolation_level,
        connection.read_only,
        connection.deferrable,
        connection.row_factory,
    )


def changes_modes(connection: Connection) -> object:
    found = modes(connection)
    connection.autocommit = connection.read_only = connection.deferrable = True
    connection.isolation_level = IsolationLevel.SERIALIZABLE
    connection.row_factory = dict_row  # type: ignore[assignment] # as applications do
    return found


async def changes_modes_async(connection: AsyncConnection) -> object:
    found = modes(connection)
    await connection.set_autocommit(True)
    await connection.set_read_only(True)
    await connection.set_deferrable(True)
    await connection.set_isolation_level(IsolationLevel.SERIALIZABLE)
    connection.row_factory = dict_row  # type: ignore[assignment] # as applications do
    return found


@pytest.mark.parametrize("body", [changes_modes, changes_modes_async])
def test_no_mode_of_a_connection_outlives_its_schedule(empty_dsn: str, body: Actor) -> None:
    with Stage(empty_dsn, replace(bodies.TWO, actors={"a": body})) as stage:
        for _ in range(2):
            found = run(stage, [], Bounds()).endings["a"].returned
            assert found == (False, None, None, None, tuple_row)


def test_a_connection_that_was_lost_is_replaced_in_the_next_schedule(empty_dsn: str) -> None:
    program = replace(bodies.TWO, actors={"a": partial(set_one_async, to=1)})
    with Stage(empty_dsn, program) as stage:
        for schedule in ("a!", "a^", "a?", "a a"):
            trace = run(stage, parse(schedule), Bounds())
        assert trace.endings["a"].ok


def test_a_task_that_an_actor_leaves_running_fails_the_schedule_and_is_cancelled(
    empty_dsn: str,
) -> None:
    left: list[asyncio.Task[None]] = []

    async def careless(connection: AsyncConnection) -> None:
        left.append(asyncio.create_task(asyncio.sleep(3600)))
        await set_one_async(connection, 1)

    trace = replay(replace(bodies.TWO, actors={"a": careless}), "a", empty_dsn)
    says = "it left 1 of its tasks running: an actor does one thing at a time"
    assert trace.violation == ("actor", f"a raised RuntimeError: {says}")
    assert left[0].cancelled()


def test_a_generator_is_no_actor_and_has_not_passed_for_having_done_nothing(
    empty_dsn: str,
) -> None:
    async def looks(connection: AsyncConnection) -> AsyncIterator[int]:
        yield 1

    def plainly(connection: Connection) -> Iterator[int]:
        yield 1

    one = bodies.TWO
    for body in (looks, plainly):
        one = replace(one, actors={"a": cast(Actor, body)})
        trace = replay(one, "", empty_dsn)
        one = again(one)
        assert trace.violation is not None
        assert "an actor is a function" in trace.violation.sentence


def test_a_program_may_have_actors_of_both_kinds(empty_dsn: str) -> None:
    mixed = replace(LOST_UPDATE, actors={"a": increment, "b": increment_async})
    plain = replay(LOST_UPDATE, "a b b b a a", empty_dsn)
    assert compared(replay(again(mixed), "a b b b a a", empty_dsn)) == compared(plain)


def test_async_code_can_explore_too(empty_dsn: str) -> None:
    async def main() -> Trace:
        return replay(LOST_UPDATE_ASYNC, "a b b b a a", empty_dsn)

    assert run_async(main()).violation is not None
