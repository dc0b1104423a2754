"""Projects a failure in a saved history onto scripts: which tasks, and who did what to each.

The log of a run shows whole transactions, so the order that is projected is that of their commits.
Of the statements within them it says nothing: those are for the search to interleave.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast, get_args

from chaos.explore.schedule import CRASH, Advance, Choice, Schedule, Step
from chaos.explore.scheduler_actors import LEASE
from chaos.history.events import PENDING, RUNNING, History, Row
from chaos.history.lives import Life
from chaos.invariants.verdict import Failure
from chaos.lowering.actors import SNOOZE
from chaos.lowering.deeds import Deed, deeds, renewer
from chaos.lowering.script import Script
from scheduler.recurring import Missed

NAMES = "abcdef"  # of actors: what takes more of them is not lowered
# Those that the beginning of a history can break; the others speak of its end, of how long the
# machine took, or of what happened outside the database.
LOWERABLE = (
    "no-overlap",
    "fenced",
    "effect-once",
    "key-once",
    "limit-held",
    "occurrence-once",
    "not-early",
    "attempts-bounded",
    "backs-off",
    "claim-bounded",
    "legal-steps",
)
LARGEST = 4  # how many attempts, or commits of several tasks, are looked back upon
_SECOND = timedelta(seconds=1)
_CAP = timedelta(seconds=60)  # of the backoff that a script's tasks have


class CannotLowerError(Exception):
    """The failure cannot be lowered; the message says why, in one sentence."""


@dataclass(frozen=True)
class Projection:
    """A script, and the order in which things happened. `cast` tells who each actor was."""

    script: Script
    schedule: Schedule
    cast: Mapping[str, str]


def projections(
    history: History, lives: Mapping[int, Life], invariant: str, failure: Failure
) -> list[Projection]:
    """What to look for the failure in, the smallest first. Raises CannotLowerError."""
    if invariant not in LOWERABLE:
        raise CannotLowerError(
            f"{invariant} speaks of a run's end, of its time or of effects outside the database,"
            " which no order of statements decides"
        )
    life = None if failure.task is None else lives.get(failure.task)
    if life is None or not life.moves:
        raise CannotLowerError("the failure is of no task of which the history shows a commit")
    seq = failure.seq if failure.seq is not None else _foreign_renewal(life)
    match invariant:
        case "limit-held":
            looks = _of_limits(history, lives, life, failure, seq)
        case "key-once":
            looks = _of_keys(history, lives, life, seq)
        case "occurrence-once":
            looks = _of_schedules(history, lives, life, seq)
        case "claim-bounded":
            looks = _of_claims(history, lives, life, seq)
        case _:
            looks = _of_attempts(history, life, invariant, seq)
    found = [one for one in looks if one is not None and one.script.actors]
    if not found:
        raise CannotLowerError(f"it takes more than {len(NAMES)} actors")
    return found


def _foreign_renewal(life: Life) -> int:
    """The commit in which somebody prolonged another's lease first; the last one if nobody did."""
    for move in life.moves:
        row = move.after
        if row is not None and row.state == RUNNING and renewer(life, row) != row.owner:
            return move.seq
    return life.moves[-1].seq


def _of_attempts(
    history: History, life: Life, invariant: str, seq: int
) -> Iterator[Projection | None]:
    """The last attempts of one task: two, then more, back to its first."""
    _must_stand(history, [life])
    told = deeds(history, life, seq)
    claims = [move for move in life.moves if move.is_claim and move.seq <= seq]
    for many in range(min(2, len(claims)), min(LARGEST, len(claims)) + 1):
        first = claims[-many] if many else None
        row = first.before if first is not None and many < len(claims) else life.moves[0].after
        since = first.seq if first is not None and many < len(claims) else 0
        script = Script(
            actors={},
            invariant=invariant,
            attempts=max(1, row.max_attempts - row.attempts) if row is not None else 1,
        )
        yield _projected(script, [deed for deed in told if deed.seq >= since])


def _of_claims(
    history: History, lives: Mapping[int, Life], life: Life, seq: int
) -> Iterator[Projection | None]:
    """Everything that one claim took."""
    told = [deed for one in lives.values() for deed in deeds(history, one, seq)]
    owner = next(d.who for d in told if d.seq == seq and d.task == life.task and d.word == "claim")
    told = [deed for deed in told if deed.who == owner and deed.word == "claim"]
    _must_stand(history, [lives[deed.task] for deed in told])
    claims = max(1, history.rules.claim_limit)
    script = Script(actors={}, invariant="claim-bounded", tasks=len(told), claims=claims)
    yield _projected(script, sorted(told, key=lambda deed: deed.seq))


def _of_limits(
    history: History, lives: Mapping[int, Life], life: Life, failure: Failure, seq: int
) -> Iterator[Projection | None]:
    """The last that came to count under a limit, whose others are taken off the limit itself."""
    now = _row_at(life, seq)
    if now is None:
        return
    of_source = now.source in history.rules.caps and f"source {now.source} " in failure.sentence
    came: dict[int, list[Deed]] = {}
    for one in lives.values():
        row = _row_at(one, seq)
        if row is None or (row.source != now.source if of_source else row.kind != now.kind):
            continue
        told = deeds(history, one, seq, "enqueue")
        if of_source and row.counted and row.state in (PENDING, RUNNING):
            came.setdefault(int(told[0].seq), []).append(told[0])
        elif not of_source and row.state == RUNNING:
            claim = [deed for deed in told if deed.word == "claim"][-1]
            came.setdefault(int(claim.seq), []).append(claim)
    _must_stand(history, [lives[deed.task] for told in came.values() for deed in told])
    limit = history.rules.caps[now.source or ""] if of_source else history.rules.limits[now.kind]
    over = sum(map(len, came.values())) - limit
    latest = sorted(came, reverse=True)
    for many in range(2, LARGEST + 1):
        told = [deed for one in latest[:many] for deed in came[one]]
        room = len(told) - over
        if room < 1:
            continue
        tasks = 0 if of_source else len(told)
        script = Script(actors={}, invariant="limit-held", tasks=tasks, claims=max(1, tasks))
        script = replace(script, cap=room) if of_source else replace(script, limit=room)
        yield _projected(script, sorted(told, key=lambda deed: deed.seq))


def _of_keys(
    history: History, lives: Mapping[int, Life], life: Life, seq: int
) -> Iterator[Projection | None]:
    """The task and those that had its key before it: one, then more."""
    first = life.moves[0].after
    if first is None or first.key is None:
        raise CannotLowerError(f"task {life.task} has no key")
    key, kind = first.key, first.kind

    def has_it(other: Life) -> bool:
        row = other.moves[0].after if other.moves else None
        return row is not None and row.key == key and row.kind == kind

    yield from _with_others(
        history,
        life,
        [one for one in lives.values() if has_it(one)],
        seq,
        "ask",
        Script(
            actors={},
            invariant="key-once",
            tasks=0,
            attempts=first.max_attempts,
            until=key.until,
        ),
    )


def _of_schedules(
    history: History, lives: Mapping[int, Life], life: Life, seq: int
) -> Iterator[Projection | None]:
    """The run of a schedule and those before it: one, then more."""
    first = life.moves[0].after
    occurrence = None if first is None else first.occurrence
    recurrence = None if occurrence is None else history.rules.schedules.get(occurrence.schedule)
    if occurrence is None or recurrence is None or recurrence.missed not in get_args(Missed):
        raise CannotLowerError(f"task {life.task} is of no schedule that the run says more of")

    def is_of_it(other: Life) -> bool:
        row = other.moves[0].after if other.moves else None
        of = None if row is None else row.occurrence
        return of is not None and of.schedule == occurrence.schedule

    yield from _with_others(
        history,
        life,
        [one for one in lives.values() if is_of_it(one)],
        seq,
        "plan",
        Script(
            actors={},
            invariant="occurrence-once",
            tasks=0,
            missed=cast(Missed, recurrence.missed),
        ),
    )


def _with_others(
    history: History,
    life: Life,
    family: Iterable[Life],
    seq: int,
    created_by: str,
    script: Script,
) -> Iterator[Projection | None]:
    """A task and the latest of its family before it: none, then one, then more."""
    before = sorted(
        (one for one in family if one.moves[0].seq < life.moves[0].seq),
        key=lambda one: one.moves[0].seq,
    )
    for many in range(min(len(before), LARGEST - 1) + 1):
        concerned = [*before[len(before) - many :], life]
        _must_stand(history, concerned)
        told = [deed for one in concerned for deed in deeds(history, one, seq, created_by)]
        yield _projected(script, sorted(told, key=lambda deed: deed.seq))


def _must_stand(history: History, concerned: Iterable[Life]) -> None:
    tasks = {life.task for life in concerned}
    for failover in history.failovers:
        for commit in failover.lost:
            for change in commit.changes:
                if change.task in tasks:
                    raise CannotLowerError(
                        f"a failover undid commits of task {change.task}, and the explorer's"
                        " database does not go back"
                    )


def _row_at(life: Life, seq: int) -> Row | None:
    """The task as it was after a commit."""
    row = None
    for move in life.moves:
        if move.seq > seq:
            break
        row = move.after
    return row


def _projected(script: Script, told: list[Deed]) -> Projection | None:
    """The script with its actors, and the order of what they did; None if they are too many."""
    tasks = {task: number for number, task in enumerate(sorted({deed.task for deed in told}), 1)}
    names: dict[str, str] = {}
    words: dict[str, list[str]] = {}
    schedule: list[Choice] = []
    clock = _Clock(told)
    for deed, times in _merged(told):
        if deed.who not in names:
            if len(names) == len(NAMES):
                return None
            names[deed.who] = NAMES[len(names)]
        name = names[deed.who]
        advance = clock.before(deed)
        if advance:
            schedule.append(Advance(advance))
        steps = script.steps(deed.word) if deed.word else 2
        if deed.fault == CRASH:
            steps = 1
        if deed.word == "claim":
            times = min(times, script.claims)
        if deed.word:
            number = tasks[deed.task] if deed.word in _OPERATIONS else times
            words.setdefault(name, []).append(deed.word + (f":{number}" if number > 1 else ""))
        schedule += [Step(name)] * (steps - 1) + [Step(name, deed.fault)]
    return Projection(
        replace(script, actors={name: " ".join(said) for name, said in words.items()}),
        tuple(schedule),
        {name: who for who, name in names.items()},
    )


_OPERATIONS = frozenset({"cancel", "requeue", "discard"})
_COUNTED = frozenset({"claim", "enqueue"})  # one word for several tasks, with their number
_ONCE = frozenset({"reclaim", "renew", "plan"})  # one word for several tasks


def _merged(told: Iterable[Deed]) -> Iterator[tuple[Deed, int]]:
    """Deeds, with what one statement did to several tasks as one; and to how many."""
    several: dict[tuple[float, str, str], list[Deed]] = {}
    for number, deed in enumerate(told):
        one = deed.word in _COUNTED or deed.word in _ONCE
        key = (deed.seq, deed.who, deed.word if one else f"{deed.word} {number}")
        several.setdefault(key, []).append(deed)
    for same in several.values():
        yield same[0], len(same) if same[0].word in _COUNTED else 1


class _Clock:
    """How far the explorer's clock is to be moved before each deed.

    Time goes by as it did, in lengths of a lease: the program's leases are longer than the run's. A
    lease that was over is over, and one that was not is not, whatever is lost in rounding.
    """

    def __init__(self, told: list[Deed]) -> None:
        length = next((deed.lease for deed in told if deed.lease > 0), 0)
        self._scale = LEASE / timedelta(microseconds=length) if length else 0.0
        self._last: int | None = None  # when the deed before was done, in the run
        self._now = timedelta(0)
        self._expires: dict[str, timedelta] = {}
        self._due: dict[int, timedelta] = {}
        self._claims: dict[int, int] = {}

    def before(self, deed: Deed) -> timedelta:
        """By how much it is to be moved for this one, in whole seconds."""
        by = timedelta(0)
        if self._last is not None:
            passed = timedelta(microseconds=max(0, deed.at - self._last)) * self._scale
            by = timedelta(seconds=passed // _SECOND)
        if deed.word == "reclaim":
            left = self._expires.get(deed.of, self._now) - self._now
            by = max(by, left + _SECOND) if deed.ripe else max(min(by, left - _SECOND), by * 0)
        if deed.word == "claim" and deed.ripe:
            by = max(by, self._due.get(deed.task, self._now) - self._now)
        # What is less than a second is not forgotten: it counts for the next deed.
        if by or self._last is None:
            self._last = deed.at
        self._now += by
        self._follow(deed)
        return by

    def _follow(self, deed: Deed) -> None:
        if deed.word in ("claim", "renew"):
            self._expires[deed.of or deed.who] = self._now + LEASE
        if deed.word == "claim":
            self._claims[deed.task] = self._claims.get(deed.task, 0) + 1
        elif deed.word == "fail":
            backoff = _SECOND * 2 ** max(0, self._claims.get(deed.task, 1) - 1)
            self._due[deed.task] = self._now + min(_CAP, backoff) + _SECOND
        elif deed.word == "snooze":
            self._due[deed.task] = self._now + SNOOZE + _SECOND
