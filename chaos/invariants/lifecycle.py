"""A task's way from enqueue to its end: `no-lost-task`, `legal-steps`, `conserved`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from chaos.history.events import FINAL, PENDING, RUNNING, STATES, History, Phases, Row
from chaos.history.lives import Life, Moved
from chaos.history.lost import Lost, lost
from chaos.invariants.failing_over import judge_lost
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span, starved


def no_lost_task(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Every committed or acknowledged enqueue is settled, waiting, or running on a lease in time.

    How long an expired lease may lie around is a bound, and bounds are counted from heal and mean
    nothing on a starved machine: then a stuck task makes the verdict inconclusive.

    A task whose enqueue was lost in a failover to an asynchronous standby is counted, and is no
    violation. With a synchronous one, nothing may be lost of which anybody was told: no enqueue,
    and none of what was later done with the task.
    """
    found, unproven = Found(), Found()
    phases = history.phases
    stuck = unproven if phases.starved_reclaim else found
    tally: Counter[str] = Counter()
    judged = 0
    for life in lives.values():
        if not life.moves:
            for note in life.notes:
                if note.what == "acknowledged":
                    judged += 1
                    found.add(
                        life.task,
                        None,
                        f"its enqueue was acknowledged at {clock(note.at)},"
                        " but no commit ever inserted it",
                    )
                    break
            continue
        judged += 1
        for move in life.moves:
            if move.after is None and move.before is not None and move.before.state not in FINAL:
                found.add(
                    life.task,
                    move.seq,
                    f"was deleted at {clock(move.at)} while it was {move.before.state}",
                )
        row, seq = life.last, life.moves[-1].seq
        tally["pruned" if row is None else row.state] += 1
        if row is None:
            continue
        if row.state not in STATES:
            found.add(life.task, seq, f"ended in the unknown state {row.state!r}")
        elif row.state == RUNNING:
            why = _stuck(row, phases)
            if why is not None:
                stuck.add(life.task, seq, why)
        if history.finals and life.final is None:
            found.add(
                life.task, seq, f"vanished: it was last {row.state}, and the final look missed it"
            )
    gone = lost(history)
    judge_lost(history, gone, found)
    judged += len(gone.tasks)
    losses = _losses(history, gone)
    return found.verdict(
        "no-lost-task",
        judged,
        f"{many(judged, 'task')}, each settled, waiting or validly running" + _told(losses),
        "no task was enqueued",
        {**tally, **losses, "unknown_outcomes": history.unknown},
        starved(phases.lag, phases.reclaim_bound, many(unproven.count, "expired lease"))
        if unproven.count
        else None,
    )


def _losses(history: History, gone: Lost) -> dict[str, int]:
    """What failovers lost, in numbers."""
    if not history.failovers:
        return {}
    return {
        "lost_commits": sum(len(failover.lost) for failover in history.failovers),
        "lost_enqueues": len(gone.tasks),
        "lost_claims": len(gone.claims),
        "lost_completions": len(gone.completed),
    }


def _told(losses: Mapping[str, int]) -> str:
    if not losses:
        return ""
    parts = ", ".join(
        many(losses[f"lost_{what}s"], what) for what in ("commit", "enqueue", "claim", "completion")
    )
    return f"; lost in a failover: {parts}"


def _stuck(row: Row, phases: Phases) -> str | None:
    """Why this running row will never run on, if so."""
    if row.expires is None:
        return f"is running with token {row.token} and no expiry, so nothing can take it back"
    over = phases.ended - max(row.expires, phases.healed)
    if over <= phases.allowed_reclaim:
        return None
    return (
        f"is stuck running: the lease of {row.owner} (token {row.token}) expired at"
        f" {clock(row.expires)} and nothing took it back by {clock(phases.ended)}"
    )


def legal_steps(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Every committed change is a step of the system's table, and tokens only grow, by claims."""
    steps = frozenset((step.before, step.after, step.outcome) for step in history.rules.steps)
    found = Found()
    judged = 0
    for life in lives.values():
        judged += len(life.moves)
        for move in life.moves:
            wrong = _wrong(move, steps)
            if wrong is not None:
                found.add(life.task, move.seq, f"at {clock(move.at)} {wrong}")
    return found.verdict(
        "legal-steps",
        judged,
        f"{many(judged, 'change')}, each a legal step",
        "no task changed",
        {},
    )


def _wrong(move: Moved, steps: frozenset[tuple[str, str, str | None]]) -> str | None:
    """What is illegal about this change, if anything."""
    before, after = move.before, move.after
    if after is None:
        if before is None or before.state in FINAL:
            return None
        return f"it was deleted while {before.state}"
    if after.state == RUNNING:
        if after.owner is None or after.expires is None:
            return "it was running without an owner and an expiry"
    elif after.owner is not None or after.expires is not None:
        return f"it was {after.state} and still had an owner or an expiry"
    if before is None:
        return None if after.state == PENDING else f"it was enqueued as {after.state}"
    claim = move.is_claim
    if claim and before.state != PENDING:
        return f"{after.owner} was given token {after.token} while it was {before.state}"
    outcome = move.ended.outcome if move.ended is not None else None
    if (before.state, after.state, outcome) not in steps:
        logged = f"with the outcome {outcome}" if outcome is not None else "with no outcome logged"
        return f"it went from {before.state} to {after.state} {logged}, which is no legal step"
    if after.token < before.token:
        return f"its token shrank from {before.token} to {after.token}"
    if claim:
        if after.token == before.token:
            return f"{after.owner} was given token {after.token}, which is not a new one"
        if after.claimed_at is not None and after.claimed_at < before.due:
            return (
                f"{after.owner} claimed it {span(before.due - after.claimed_at)} before it was due"
            )
    elif after.token != before.token:
        return f"its token went from {before.token} to {after.token} without a claim"
    return None


def conserved(history: History, lives: Mapping[int, Life]) -> Verdict:
    """Enqueued is the sum of all states plus pruned at every commit, and the end is as told.

    The sum holds before the first commit, and only a change that creates or destroys a task in an
    illegal way, or moves it to a state outside the sum, can break it: so each such change is looked
    for, instead of adding up at every commit. A change does not say whether it was an INSERT;
    what cannot have been one is a first change that is not a waiting task without attempts, and a
    second one is a living task that is back at the token it was enqueued with.

    Where clients' acknowledgements are known, more tasks without one than there are enqueues of
    unknown outcome are tasks that nobody enqueued; occurrences of a schedule are the queue's own.
    """
    found = Found()
    tally: Counter[str] = Counter()
    judged = acknowledged = 0
    unacknowledged: list[int] = []
    for life in lives.values():
        judged += len(life.moves)
        enqueued, enqueues = 0, False
        for move in life.moves:
            if move.before is None and move.after is not None:
                enqueued, enqueues = move.after.token, True
                tally["enqueued"] += 1
            broken = _broken(move, enqueued)
            if broken is not None:
                found.add(life.task, move.seq, f"at {clock(move.at)} it was {broken}")
            if move.after is None:
                tally["pruned"] += 1
        if life.last is not None:
            tally[life.last.state] += 1
        if history.finals:
            differs = _differs(life)
            if differs is not None:
                found.add(life.task, life.moves[-1].seq if life.moves else None, differs)
            if any(note.what == "acknowledged" for note in life.notes):
                acknowledged += 1
            elif enqueues and not _is_planned(life):
                unacknowledged.append(life.task)
    if acknowledged:
        tally["unacknowledged"] = len(unacknowledged)
        extra = len(unacknowledged) - history.unknown
        if extra > 0:
            which = ", ".join(map(str, unacknowledged[:10]))
            found.add(
                None,
                None,
                f"nobody enqueued {many(extra, 'task')} of those that exist;"
                f" without an acknowledgement: {which}",
            )
    return found.verdict(
        "conserved",
        judged,
        f"{many(tally['enqueued'], 'enqueued task')} accounted for"
        f" at each of {many(judged, 'change')}",
        "no task changed",
        {**tally, "compared_with_the_end": len(history.finals)},
    )


def _is_planned(life: Life) -> bool:
    first = life.moves[0].after
    return first is not None and first.occurrence is not None


def _broken(move: Moved, enqueued: int) -> str | None:
    """How this change breaks the sum, if so; `enqueued` is the token the task began with."""
    before, after = move.before, move.after
    if before is None:
        if after is None:
            return "deleted without having been inserted"
        if after.state != PENDING or after.attempts != 0:
            return (
                f"changed to {after.state} with {many(after.attempts, 'attempt')}"
                " without having been inserted"
            )
        return None
    if after is None:
        return None if before.state in FINAL else f"deleted while {before.state}"
    if after.state not in STATES:
        return f"moved to {after.state!r}, a state that nothing counts"
    if after.token == enqueued < before.token and after.attempts == 0 and after.state == PENDING:
        return f"inserted again while it lived ({before.state}, token {before.token})"
    return None


def _differs(life: Life) -> str | None:
    """How the end that the commits tell differs from the end that a SELECT found, if it does."""
    row, final = life.last, life.final
    if row is None:
        if final is None:
            return None
        told = "deleted it" if life.moves else "never inserted it"
        return f"was found {final.state} at the end, but the commits {told}"
    if final is None:
        return f"was not found at the end, but the commits left it {row.state}"
    if (row.state, row.token, row.attempts) == (final.state, final.token, final.attempts):
        return None
    return (
        f"the commits left it {row.state} with token {row.token} and"
        f" {many(row.attempts, 'attempt')}, but it was found {final.state} with token"
        f" {final.token} and {many(final.attempts, 'attempt')}"
    )
