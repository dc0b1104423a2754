"""How often a task is tried, and when again: `attempts-bounded`, `backs-off`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from math import log

from chaos.history.events import (
    DEAD,
    PENDING,
    RUNNING,
    Ended,
    History,
    Phases,
    Policy,
    Row,
    Rules,
)
from chaos.history.lives import Life, Moved
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span

_ASKED = frozenset({"released", "reclaimed"})
_COUNTED = ("failed", "reclaimed")  # outcomes of attempts that count towards the cap


@dataclass(slots=True)
class _Tally:
    """What was counted over all tasks."""

    claims: int = 0
    dead: int = 0
    killed: int = 0


def attempts_bounded(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Attempts are counted at the claim, never exceed the cap, and what exhausts it is dead.

    A killed attempt, in the evidence, is one that was reclaimed and whose handler nobody saw leave.
    """
    found, tally = Found(), _Tally()
    for life in lives.values():
        if life.moves:
            _judge_attempts(life, history.rules, found, tally)
            _judge_last_lease(life, history.phases, found)
        _judge_dead_letter(life, found)
    return found.verdict(
        "attempts-bounded",
        tally.claims,
        f"{many(tally.claims, 'attempt')} within the cap; {many(tally.dead, 'dead letter')}",
        "no task was claimed",
        {
            "dead_lettered": tally.dead,
            "killed_attempts": tally.killed,
        },
    )


def _judge_attempts(life: Life, rules: Rules, found: Found, tally: _Tally) -> None:
    used = 0  # claims minus give-backs since the enqueue or the last requeue
    # What was noted is asked of attempts that were given back or taken back: of few.
    noted = (
        {(note.what, note.token, note.owner) for note in life.notes}
        if any(ended.outcome in _ASKED for _, ended in life.ended)
        else set()
    )
    for move in life.moves:
        before, after = move.before, move.after
        if before is None or after is None:
            used = 0
            continue
        outcome = move.ended.outcome if move.ended is not None else None
        given_back = outcome in rules.gives_back
        requeued = before.state == DEAD and after.state == PENDING
        holder = (before.token, before.owner)
        wrong = []
        if move.is_claim:
            tally.claims += 1
            used += 1
            wrong += _wrong_claim(before, after, used)
        elif requeued:
            used = 0
            wrong += _wrong_count(before, after, 0, outcome)
        else:
            used -= given_back
            wrong += _wrong_count(before, after, before.attempts - given_back, outcome)
        if outcome == "released" and given_back and ("started", *holder) in noted:
            wrong.append(
                f"{before.owner} gave token {before.token} back as never started,"
                " but its handler had started"
            )
        if (
            move.ended is not None
            and outcome in _COUNTED
            and before.attempts >= before.max_attempts
        ):
            wrong += _wrong_last(before, after, move.ended)
        if _dies(move):
            tally.dead += 1
            if after.attempts < after.max_attempts:
                wrong.append(
                    f"was dead-lettered after {after.attempts} of"
                    f" {many(after.max_attempts, 'attempt')}"
                )
        if after.max_attempts != before.max_attempts and not requeued:
            wrong.append(
                f"its cap was moved from {before.max_attempts} to"
                f" {many(after.max_attempts, 'attempt')}"
                f" at {clock(move.at)}"
            )
        tally.killed += outcome == "reclaimed" and ("finished", *holder) not in noted
        for sentence in wrong:
            found.add(life.task, move.seq, sentence)


def _wrong_claim(before: Row, after: Row, used: int) -> list[str]:
    if before.attempts >= before.max_attempts:
        return [
            f"{after.owner} claimed it although it had used {before.attempts} of"
            f" {many(before.max_attempts, 'attempt')}"
        ]
    if after.attempts != before.attempts + 1:
        return [
            f"the claim of {after.owner} took its attempts from {before.attempts} to"
            f" {after.attempts}, not up by one"
        ]
    if used > after.max_attempts:
        return [
            f"{after.owner} began attempt {used} since the enqueue or last requeue, above the cap"
            f" of {after.max_attempts}; the row says {after.attempts}"
        ]
    return []


def _wrong_count(before: Row, after: Row, expected: int, outcome: str | None) -> list[str]:
    if after.attempts == expected:
        return []
    return [
        f"going from {before.state} to {after.state} ({outcome or 'no outcome'}) left its attempts"
        f" at {after.attempts}, not {expected}"
    ]


def _wrong_last(before: Row, after: Row, ended: Ended) -> list[str]:
    if after.state != DEAD:
        return [
            f"its last attempt, {before.attempts} of {before.max_attempts}, was {ended.outcome},"
            f" but it became {after.state} instead of dead"
        ]
    if not after.error:
        return ["was dead-lettered without an error"]
    if ended.error is not None and after.error != ended.error:
        return [
            f"was dead-lettered with the error {_short(after.error)}, but the attempt that"
            f" exhausted it (token {ended.token}) ended with {_short(ended.error)}"
        ]
    return []


def _judge_last_lease(life: Life, phases: Phases, found: Found) -> None:
    """A last attempt whose lease ran out is over: it must not stay neither running nor dead."""
    row = life.last
    if row is None or row.state != RUNNING or row.attempts != row.max_attempts:
        return
    if row.expires is None or phases.starved_reclaim:
        return
    if phases.ended - max(row.expires, phases.healed) > phases.allowed_reclaim:
        found.add(
            life.task,
            life.moves[-1].seq,
            f"its last attempt, {row.attempts} of {row.max_attempts}, was over with its lease at"
            f" {clock(row.expires)}, but at {clock(phases.ended)} it was not dead-lettered",
        )


def _short(error: str) -> str:
    return repr(error if len(error) <= 80 else error[:79] + "…")


def _judge_dead_letter(life: Life, found: Found) -> None:
    final = life.final
    if final is None or final.state != DEAD:
        return
    seq = life.moves[-1].seq if life.moves else None
    if final.payload_enqueued and final.payload_now != final.payload_enqueued:
        found.add(life.task, seq, "is dead-lettered, but not with the payload it was enqueued with")
    last = next((move.ended for move in reversed(life.moves) if _dies(move)), None)
    if not final.error:
        found.add(life.task, seq, "is dead-lettered, but its last error is gone")
    elif last is not None and last.error is not None and final.error != last.error:
        found.add(
            life.task,
            seq,
            f"is dead-lettered with the error {_short(final.error)}, but the attempt that"
            f" exhausted it (token {last.token}) ended with {_short(last.error)}",
        )


def _dies(move: Moved) -> bool:
    before, after = move.before, move.after
    return before is not None and before.state != DEAD and after is not None and after.state == DEAD


def backs_off(history: History, lives: Mapping[int, Life]) -> Verdict:
    """After a failed attempt the next due time is exactly what the row's policy says.

    After a snooze it is not before the attempt's end, and exactly the delay later if all snoozes
    of this system ask for the same and it was the handler that asked.
    """
    found = Found()
    judged = 0
    longest = 0.0
    put_off = {
        (note.task, note.token, note.owner) for note in history.notes if note.what == "put-off"
    }
    for life in lives.values():
        for move in life.moves:
            ended, before, after = move.ended, move.before, move.after
            if ended is None or before is None or after is None:
                continue
            if ended.outcome == "snoozed" and after.state == PENDING:
                judged += 1
                own = (life.task, before.token, before.owner) in put_off  # the worker's own wish
                wrong = _wrong_snooze(ended, after, None if own else history.rules.snooze_delay)
                if wrong is not None:
                    found.add(life.task, move.seq, wrong)
            if ended.outcome != "failed":
                continue
            if after.state != PENDING or before.policy is None:
                continue
            judged += 1
            expected = delay(before.policy, before.attempts, life.task, before.token) * 1e6
            longest = max(longest, expected)
            actual = after.due - ended.finished_at
            # The system stores whole microseconds, and its floats may round another way.
            if abs(actual - expected) > max(2.0, 1e-9 * expected):
                found.add(
                    life.task,
                    move.seq,
                    f"attempt {before.attempts} (token {before.token}) failed at"
                    f" {clock(ended.finished_at)} and is due again after {span(actual)},"
                    f" but its policy says {span(expected)}",
                )
    return found.verdict(
        "backs-off",
        judged,
        f"{many(judged, 'attempt')} put off exactly as policy or snooze say",
        "no attempt failed or snoozed to be tried again after a delay that is known",
        {"longest_delay_ms": longest / 1000},
    )


def _wrong_snooze(ended: Ended, after: Row, delay: int | None) -> str | None:
    actual = after.due - ended.finished_at
    said = (
        f"attempt {ended.attempt} (token {ended.token}) was snoozed at {clock(ended.finished_at)}"
    )
    if actual < 0:
        return f"{said} and is due again {span(-actual)} before that"
    if delay is not None and actual != delay:
        return f"{said} and is due again after {span(actual)}, but it asked for {span(delay)}"
    return None


def delay(policy: Policy, attempts: int, task: int, token: int) -> float:
    """The seconds from a failure to the next due time, when `attempts` have been used.

    `min(cap, base * factor ** (attempts - 1))`, of which the jitter's share is cut by a number in
    [0, 1) that depends on task and token alone. `ValueError` if the factor is not positive.
    """
    if policy.base <= 0 or policy.cap <= 0:
        return 0.0
    exponent = attempts - 1
    # In logarithms first: the power itself overflows long before attempt counts do.
    if log(policy.base) + exponent * log(policy.factor) >= log(policy.cap):
        longest = policy.cap
    else:
        longest = min(policy.cap, policy.base * policy.factor**exponent)
    digest = sha256(f"{task}:{token}".encode()).hexdigest()
    return longest * (1 - policy.jitter * (int(digest[:8], 16) / 2**32))
