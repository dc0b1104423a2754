"""Who may run a task, and until when: `no-overlap`, `reclaimed-in-time`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from chaos.history.events import RUNNING, Ended, History, Note, Row
from chaos.history.lives import Life, Moved
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many, span, spread, starved


class _Lease(NamedTuple):
    """What the commits say of one lease: `until` is its expiry as last renewed."""

    seq: int
    given: int
    until: int
    over: int | None  # when a run-log row ended it, if one did


class _Run(NamedTuple):
    """What a worker's journal says of one attempt. `left` is None when nobody saw its end."""

    token: int
    owner: str
    began: int
    left: int | None
    lease: _Lease | None

    @property
    def end(self) -> int:
        """Until when it certainly ran: an end nobody saw is not put past the lease's."""
        if self.left is not None:
            return self.left
        lease = self.lease
        if lease is None:
            return self.began
        return lease.until if lease.over is None else min(lease.until, lease.over)


def no_overlap(history: History, lives: Mapping[int, Life]) -> Verdict:
    """No lease is taken away while valid, and no two attempts run at once on valid leases.

    A lease is valid from its claim until its expiry as last renewed. Its holder may end it earlier,
    and so may a cancel; but a holder that lets go of a lease and runs on is not excused.
    Running on after expiry beside a newer attempt is legal, and reported as a zombie window.
    """
    found = Found()
    judged = handovers = 0
    zombies: list[int] = []
    for life in lives.values():
        given = _judge_commits(life, found)
        judged += given
        if given > 1:
            handovers += given - 1
        zombies += _judge_runs(life, found)
    return found.verdict(
        "no-overlap",
        judged,
        f"{many(judged, 'lease')}, none taken away or run beside another while valid",
        "no lease was given",
        {
            "handovers": handovers,
            "zombie_windows": len(zombies),
            "zombie_longest_ms": max(zombies, default=0) / 1000,
            "zombie_total_ms": sum(zombies) / 1000,
        },
    )


def _judge_commits(life: Life, found: Found) -> int:
    """Find leases that were taken away while valid; return how many were given."""
    given = 0
    robbed: Row | None = None  # held a lease that neither the holder, cancel nor reclaim ended
    for move in life.moves:
        before, after = move.before, move.after
        claimed = move.is_claim
        given += claimed
        if before is not None and before.state == RUNNING:
            if claimed:
                _judge_taken(life, move, before, found)
            elif after is None or after.state != RUNNING:
                if not _ended_by_right(before, move.ended):
                    robbed = before
                elif _reclaimed_early(before, move.ended):
                    assert move.ended is not None
                    found.add(
                        life.task,
                        move.seq,
                        f"{before.owner} held token {before.token} until {clock(before.expires)},"
                        f" but it was reclaimed at {clock(move.ended.finished_at)}",
                    )
        elif claimed and robbed is not None:
            _judge_taken(life, move, robbed, found)
            robbed = None
    return given


def _judge_taken(life: Life, move: Moved, held: Row, found: Found) -> None:
    """Judge a claim that follows a lease which nobody ended by right."""
    taken = move.after
    assert taken is not None
    # Without a claim time the commit's must do: it is later, so it can only excuse.
    at = taken.claimed_at if taken.claimed_at is not None else move.at
    if held.expires is not None and at < held.expires:
        found.add(
            life.task,
            move.seq,
            f"{held.owner} held token {held.token} until {clock(held.expires)},"
            f" but {taken.owner} was given token {taken.token} at {clock(at)}",
        )


def _ended_by_right(held: Row, ended: Ended | None) -> bool:
    if ended is None:
        return False
    if ended.outcome in ("reclaimed", "cancelled"):
        return True
    return (ended.token, ended.owner) == (held.token, held.owner)


def _reclaimed_early(held: Row, ended: Ended | None) -> bool:
    return (
        ended is not None
        and ended.outcome == "reclaimed"
        and held.expires is not None
        and ended.finished_at < held.expires
    )


def _judge_runs(life: Life, found: Found) -> list[int]:
    """Find attempts that ran at once on valid leases; return the lengths of zombie windows."""
    if [note.what for note in life.notes].count("started") < 2:
        return []
    runs = sorted(_runs(life), key=lambda run: run.began)
    # Sorted by where they begin, two intervals overlap only if one begins before the latest end
    # so far: one sweep finds every attempt that ran beside an earlier one.
    guilty: set[_Run] = set()
    covered = sorted(_covered(runs), key=lambda stretch: stretch[:2])
    reach, holder = None, None
    for begin, end, run in covered:
        if reach is not None and holder is not None and begin < min(reach, end):
            assert run.lease is not None
            guilty.add(run)
            found.add(
                life.task,
                run.lease.seq,
                f"{holder.owner} (token {holder.token}) and {run.owner} (token {run.token})"
                f" both ran it from {clock(begin)} to {clock(min(reach, end))}"
                " on leases that were both valid",
            )
        if reach is None or end > reach:
            reach, holder = end, run
    zombies = []
    latest: int | None = None  # when the last of the earlier attempts was left
    for run in runs:
        if latest is not None and run not in guilty:
            window = min(latest, run.end) - run.began
            if window > 0:
                zombies.append(window)
        if run.left is not None and (latest is None or run.left > latest):
            latest = run.left
    return zombies


def _covered(runs: Iterable[_Run]) -> Iterable[tuple[int, int, _Run]]:
    """For each attempt, the stretch in which it certainly ran and its lease was valid."""
    for run in runs:
        if run.lease is not None:
            begin, end = max(run.began, run.lease.given), min(run.end, run.lease.until)
            if begin < end:
                yield begin, end, run


def _runs(life: Life) -> Iterable[_Run]:
    """Pair each `started` note with its `finished`: one attempt's notes come in order."""
    leases = _leases(life)
    started: dict[tuple[int, str], Note] = {}
    for note in life.notes:
        key = (note.token, note.owner)
        if note.what == "started":
            again = started.pop(key, None)
            if again is not None:
                yield _Run(*key, again.at, None, leases.get(key))
            started[key] = note
        elif note.what == "finished" and key in started:
            yield _Run(*key, started.pop(key).at, note.at, leases.get(key))
    for key, note in started.items():
        yield _Run(*key, note.at, None, leases.get(key))


def _leases(life: Life) -> dict[tuple[int, str], _Lease]:
    found: dict[tuple[int, str], _Lease] = {}
    for move in life.moves:
        row = move.after
        if row is None or row.state != RUNNING or row.owner is None or row.expires is None:
            continue
        key = (row.token, row.owner)
        lease = found.get(key)
        if lease is None:
            given = row.claimed_at if row.claimed_at is not None else move.at
            found[key] = _Lease(move.seq, given, row.expires, None)
        else:
            found[key] = lease._replace(until=row.expires)
    for _, ended in life.ended:
        key = (ended.token, ended.owner)
        if key in found:
            found[key] = found[key]._replace(over=ended.finished_at)
    return found


def reclaimed_in_time(history: History, lives: Mapping[int, Life]) -> Verdict:
    """An expired lease is taken back within the bound, once the system is healed.

    The bound counts from the later of expiry and heal, and the machine's own lag is added to it.
    Reclaims during the faults are in the distribution only. On a machine that lagged by more than
    the bound, a breach is inconclusive.
    """
    phases = history.phases
    allowed = phases.allowed_reclaim
    late = Found()
    delays: list[int] = []
    after_heal = 0
    for life in lives.values():
        for move in life.moves:
            held, ended = move.before, move.ended
            if ended is None or ended.outcome != "reclaimed" or held is None:
                continue
            if held.expires is None:
                continue  # nothing to measure from: `legal-steps` refuses such a row
            delays.append(move.at - held.expires)
            if move.at <= phases.healed:
                continue
            after_heal += 1
            delay = move.at - max(held.expires, phases.healed)
            if delay > allowed:
                late.add(
                    life.task,
                    move.seq,
                    f"the lease of {held.owner} (token {held.token}) expired at"
                    f" {clock(held.expires)} and was reclaimed at {clock(move.at)}:"
                    f" {span(delay)} late, {span(allowed)} are allowed",
                )
        row = life.last
        if row is None or row.state != RUNNING or row.expires is None:
            continue
        over = phases.ended - max(row.expires, phases.healed)
        if over > allowed:
            late.add(
                life.task,
                life.moves[-1].seq,
                f"the lease of {row.owner} (token {row.token}) expired at {clock(row.expires)} and"
                f" was not reclaimed by {clock(phases.ended)}: {span(allowed)} are allowed",
            )
    return (Found() if phases.starved_reclaim else late).verdict(
        "reclaimed-in-time",
        len(delays),
        f"{many(len(delays), 'expired lease')} reclaimed,"
        f" {after_heal} of them after heal and in time",
        "no lease expired and was reclaimed",
        {
            **spread(delays, "delay"),
            "after_heal": after_heal,
            "late": late.count,
        },
        starved(phases.lag, phases.reclaim_bound, many(late.count, "late reclaim"))
        if phases.starved_reclaim and late.count
        else None,
    )
