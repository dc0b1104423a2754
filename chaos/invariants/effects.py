"""What handlers did: `effect-once` inside the database, `explained-duplicate` outside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from chaos.history.events import COMPLETED, DEAD, PENDING, RUNNING, History, worker_of
from chaos.history.lives import Life, Moved
from chaos.history.lost import lost
from chaos.invariants.causes import Causes, heard_of
from chaos.invariants.failing_over import allowed_losses
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many

# Outcomes after which another attempt may rightly repeat an effect outside the database.
EXPLAINS = frozenset({"failed", "released", "snoozed", "cancelled", "reclaimed"})
# What such an outcome is called where duplicates are counted. One that was completed can only have
# been requeued afterwards.
_REASONS = {
    "failed": "failure",
    "released": "release",
    "snoozed": "snooze",
    "cancelled": "cancel",
    "reclaimed": "reclaim",
    "completed": "requeue",
}


def _completes(move: Moved) -> bool:
    before, after, ended = move.before, move.after, move.ended
    if ended is not None:
        return ended.outcome == "completed"
    return (
        after is not None
        and after.state == COMPLETED
        and (before is None or before.state != COMPLETED)
    )


def effect_once(history: History, lives: Mapping[int, Life]) -> Verdict:
    """A transactional effect commits with the completion it belongs to: once, or not at all.

    A kind is transactional if any task of it has an effect: each of its completions must then have
    exactly one. A requeue starts a new allowance of one.
    """
    kinds = {life.kind for life in lives.values() if life.effects}
    found = Found()
    effects = completions = 0
    for life in lives.values():
        if not life.effects and life.kind not in kinds:
            continue
        completed = {move.seq: move for move in life.moves if _completes(move)}
        completions += len(completed)
        effects += len(life.effects)
        _judge_effects(life, completed, found)
        with_effect = {commit.seq for commit, _ in life.effects}
        for seq, move in completed.items():
            if seq not in with_effect:
                found.add(
                    life.task,
                    seq,
                    f"completed at {clock(move.at)} without its effect, and its kind has one",
                )
    return found.verdict(
        "effect-once",
        effects,
        f"{many(effects, 'effect')} committed with {many(completions, 'completion')}, one each",
        "no transactional effect was committed",
        {"completions": completions},
    )


def _judge_effects(life: Life, completed: Mapping[int, Moved], found: Found) -> None:
    requeues = [
        move.seq
        for move in life.moves
        if move.before is not None
        and move.before.state == DEAD
        and move.after is not None
        and move.after.state == PENDING
    ]
    passed = 0  # requeues before this effect
    allowance_used: int | None = None
    for commit, effect in life.effects:
        while passed < len(requeues) and requeues[passed] < commit.seq:
            passed += 1
            allowance_used = None
        move = completed.get(commit.seq)
        if move is None:
            found.add(
                life.task,
                commit.seq,
                f"its effect with token {effect.token} was committed at {clock(commit.at)},"
                " apart from any completion of it",
            )
        elif move.before is not None and move.before.token != effect.token:
            found.add(
                life.task,
                commit.seq,
                f"its effect was written with token {effect.token} and committed with a completion"
                f" of token {move.before.token}",
            )
        if allowance_used is not None:
            found.add(
                life.task,
                commit.seq,
                f"its effect was committed again with token {effect.token} at {clock(commit.at)},"
                f" after token {allowance_used}",
            )
        allowance_used = effect.token


def explained_duplicate(history: History, lives: Mapping[int, Life]) -> Verdict:
    """An effect outside the database happens at least once, and each extra one has a reason.

    The reason is that its attempt failed, was given back, was cancelled, lost its lease, was
    requeued afterwards, or was undone by a failover to an asynchronous standby. The attempt that
    completed, and one that still runs, need none. A lost lease, in turn, explains anything only if
    something explains the loss (see `causes`); each loss is judged for that, if the worker kept a
    journal, up to the run's end.
    """
    effects_of = {
        life.task: times for life in lives.values() if life.notes and (times := _effects(life))
    }
    kinds = {lives[task].kind for task in effects_of}
    causes = Causes(history, lives)
    undone = allowed_losses(history, lost(history))
    journals = heard_of(history)
    found = Found()
    happened = completed = taken = redone = starved = most = 0
    reasons = Counter[str]()  # of the explained duplicates
    for life in lives.values():
        losses = [loss for loss in _losses(life, history.phases.ended) if loss.worker in journals]
        taken += len(losses)
        causeless = set()
        for loss in losses:
            if not causes.explain(loss.worker, loss.since, loss.expired):
                causeless.add((loss.token, loss.owner))
                _tell_loss(life, loss, causes, found)
            elif not causes.struck(loss.worker, loss.since, loss.expired):
                starved += causes.starved(loss.worker, loss.since, loss.expired)
        effects = effects_of.get(life.task)
        if effects:
            total = sum(effects.values())
            happened += total
            if total > 1 or undone:
                excused = _excused(life, causeless)
                extra = {key for key in effects if (life.task, *key) in undone} - excused
                redone += len(extra)
                _judge_duplicates(life, effects, excused | extra, found)
                told = _reasons(life, [key for key in effects if key in excused], extra)
                reasons.update(told)
                most = max(most, len(told))
        elif life.kind not in kinds:
            continue
        for move in life.moves:
            if _completes(move):
                completed += 1
                if not effects:
                    found.add(
                        life.task,
                        move.seq,
                        f"completed at {clock(move.at)}, but its effect never happened",
                    )
                break
    duplicates = reasons.total()
    return found.verdict(
        "explained-duplicate",
        happened + taken,
        f"{many(happened, 'effect')} of {many(completed, 'completed task')};"
        f" {many(duplicates, 'duplicate')} and {many(taken, 'lost lease')}, each explained",
        "no effect outside the database happened, and no worker with a journal lost a lease",
        {
            "effects": happened,
            "completed": completed,
            "duplicates_explained": duplicates,
            **{f"duplicates_after_{reason}": reasons[reason] for reason in sorted(reasons)},
            **({"duplicates_of_one_task_at_most": most} if most else {}),
            "leases_lost": taken,
            "leases_lost_for_want_of_a_processor": starved,
            **({"explained_by_failover": redone} if history.failovers else {}),
        },
    )


def _effects(life: Life) -> dict[tuple[int, str], int]:
    """How many effects outside the database each attempt of a task had, if it had any."""
    times: dict[tuple[int, str], int] = {}
    for note in life.notes:
        if note.what == "effect":
            attempt = note.token, note.owner
            times[attempt] = times.get(attempt, 0) + 1
    return times


class _Loss(NamedTuple):
    """A lease that ran out and was taken from its worker."""

    seq: int
    token: int
    owner: str
    worker: str
    since: int  # when it was given or last renewed
    expired: int  # or when its holder gave it up, if it was renewed after that


def _losses(life: Life, until: int) -> Iterator[_Loss]:
    """The leases that were taken back, or claimed away, after they had run out.

    A renewal may be on its way while its server or network stands still, and be committed when its
    holder gives up or has long done so. Then what is to be explained is that it did: the time of
    the lease up to there, and not what the renewal added, which nobody believed in. Who believes in
    a lease gives it up a whole length after it was asked for; so one that was set less than half of
    that before was not it. That may be the claim itself, of a worker that stood still between its
    clock and the database: then it did so for most of the time from when it must have asked.
    """
    gave_up = {
        (note.token, note.owner): note.at
        for note in reversed(life.notes)
        if note.what == "lease-lost"
    }
    since, settings = 0, list[int]()  # when the present lease was given and renewed
    for move in life.moves:
        held, after, ended = move.before, move.after, move.ended
        taken = move.is_claim or (ended is not None and ended.outcome == "reclaimed")
        if taken and held is not None and held.state == RUNNING and move.at <= until:
            if ended is not None:
                at = ended.finished_at
            else:
                at = move.at if after is None or after.claimed_at is None else after.claimed_at
            # One that was taken away too early did not run out: that is for `no-overlap`.
            if held.owner is not None and held.expires is not None and at >= held.expires:
                worker = worker_of(held.owner)
                begin, end = since, held.expires
                heard = gave_up.get((held.token, held.owner), end)
                believed = heard - (end - since) // 2
                if since > believed and settings[0] <= believed:
                    begin, end = max(at for at in settings if at <= believed), heard
                elif since > believed and len(settings) == 1:
                    begin, end = since - (end - heard) // 2, since
                yield _Loss(move.seq, held.token, held.owner, worker, begin, end)
        if after is None or after.state != RUNNING:
            continue
        if move.is_claim:
            since = move.at if after.claimed_at is None else after.claimed_at
            settings = [since]
        elif held is None or after.expires != held.expires:
            since = move.at
            settings.append(since)


def _tell_loss(life: Life, loss: _Loss, causes: Causes, found: Found) -> None:
    if causes.ordered(loss.worker, loss.expired):
        although = f"nothing was done to {loss.worker} but to ask it to stop"
    else:
        although = f"nothing was done to {loss.worker} and it was alive"
    found.add(
        life.task,
        loss.seq,
        f"the lease of {loss.owner} under token {loss.token} ran out at {clock(loss.expired)}"
        f" although {although}",
    )


def _judge_duplicates(
    life: Life,
    effects: Mapping[tuple[int, str], int],
    reasons: Collection[tuple[int, str]],
    found: Found,
) -> None:
    """Look for a reason for each effect, if there are several."""
    if sum(effects.values()) < 2:
        return
    for (token, owner), times in effects.items():
        if times > 1:
            found.add(
                life.task,
                None,
                f"one attempt, {owner} with token {token}, had its effect {times} times",
            )
        if (token, owner) not in reasons:
            found.add(
                life.task,
                None,
                f"the effect of {owner} with token {token} is an extra one, and nothing says that"
                " this attempt failed, was given back, was cancelled or rightly lost its lease",
            )


def _reasons(
    life: Life, excused: Sequence[tuple[int, str]], undone: Collection[tuple[int, str]]
) -> list[str]:
    """Why there was one effect more, in a word, for each explained one beyond the first.

    The one that needs none is that of the attempt that still runs, or else that completed, or else
    the last.
    """
    outcomes = {(ended.token, ended.owner): ended.outcome for _, ended in life.ended}
    completed = [key for key in excused if outcomes.get(key) == "completed"]
    row = life.last
    running = [key for key in excused if row is not None and key == (row.token, row.owner)]
    kept = [*excused, *undone, *completed, *running][-1:]
    return [
        "failover" if key in undone else _REASONS.get(outcomes.get(key, ""), "loss_to_a_claim")
        for key in (*excused, *undone)
        if key not in kept
    ]


def _excused(life: Life, causeless: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """The attempts whose effect needs no further explanation.

    `causeless` are those that lost their lease without a cause.
    """
    excused = set()
    completing: tuple[int, str] | None = None
    requeued = max(
        (
            move.seq
            for move in life.moves
            if move.before is not None
            and move.before.state not in (PENDING, RUNNING)
            and move.after is not None
            and move.after.state == PENDING
        ),
        default=-1,
    )
    for commit, ended in life.ended:
        key = (ended.token, ended.owner)
        explains = ended.outcome in EXPLAINS and key not in causeless
        if explains or commit.seq < requeued:
            excused.add(key)
        elif ended.outcome == "completed":
            completing = key
    if completing is not None:
        excused.add(completing)
    for move in life.moves:
        held = move.before
        if held is not None and held.state == RUNNING and held.owner is not None and move.is_claim:
            excused.update({(held.token, held.owner)}.difference(causeless))  # lost it to a claim
    row = life.last
    if row is not None and row.state == RUNNING and row.owner is not None:
        excused.add((row.token, row.owner))
    return excused
