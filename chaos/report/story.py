"""The counterexamples of a run that failed: what happened to the task that an invariant names.

Everything that commits, journals and the harness know of the task, in the order of time, with the
statement and the token of each step, and a mark at the commit that shows the failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from chaos.history.events import PENDING, RUNNING, History, Note, Row
from chaos.history.lives import Life, Moved
from chaos.invariants.fencing import BY_HOLDER
from chaos.invariants.verdict import Failure, Verdict
from chaos.report.attempts import Attempt
from chaos.report.bands import Band
from chaos.report.statements import enqueueing, statement
from chaos.report.text import plain, when

MOST_TASKS = 8  # of a failure that several tasks make together
MOST_STORIES = 6
MOST_EVENTS = 60  # of a story; those nearest to the failure are told
_MARKS = {"effect": "effect", "refused": "refused", "lease-lost": "lost"}


class Event(NamedTuple):
    """One step: when, who took it, what it was, by which statement, and in which commit if any.

    mark: `effect`, `refused`, `lost` or `write` if the picture shows it, too. guilty: whether this
    is what shows the failure.
    """

    at: int
    who: str
    what: str
    by: str = ""
    seq: int | None = None
    task: int | None = None
    mark: str = ""
    guilty: bool = False


class Story(NamedTuple):
    """One counterexample: which invariants it breaks and how, and the way there.

    tasks: whose attempts these are. guilty: when the commit was that shows it, None if none does.
    left_out: how many events are not told because they are far from the failure.
    """

    title: str
    breaks: tuple[tuple[str, str], ...]
    tasks: tuple[int, ...]
    attempts: tuple[Attempt, ...]
    bands: tuple[Band, ...]
    events: tuple[Event, ...]
    guilty: int | None
    left_out: int


def stories(
    history: History,
    lives: Mapping[int, Life],
    verdicts: Iterable[Verdict],
    attempts: Sequence[Attempt],
    bands: Sequence[Band],
) -> list[Story]:
    """The first failure of each invariant that failed, those of the same tasks told as one story.

    Those that the scenario names come first.
    """
    failed = [one for one in verdicts if one.outcome == "fail" and one.failures]
    failed.sort(key=lambda one: one.invariant not in history.named)
    at = {commit.seq: commit.at for commit in history.commits}
    grouped: dict[tuple[int, ...], list[tuple[str, Failure]]] = {}
    for one in failed:
        first = one.failures[0]
        tasks = _concerned(one.invariant, first, attempts)
        grouped.setdefault(tasks, []).append((one.invariant, first))
    return [
        _story(tasks, breaks, history, lives, attempts, bands, at)
        for tasks, breaks in list(grouped.items())[:MOST_STORIES]
    ]


def _concerned(invariant: str, failure: Failure, attempts: Sequence[Attempt]) -> tuple[int, ...]:
    """The task that a failure names, and those without which it says nothing."""
    if failure.task is None:
        return ()
    shown = [one for one in attempts if (one.task, one.seq) == (failure.task, failure.seq)]
    others: list[int] = []
    if shown and invariant == "claim-bounded":  # all that were taken by the one claim
        others = [one.task for one in attempts if one.owner == shown[0].owner]
    elif shown and invariant == "limit-held":  # all that held a lease of the kind by then
        at, kind = shown[0].claimed, shown[0].kind
        others = [
            one.task
            for one in attempts
            if one.kind == kind
            and one.claimed <= at
            and (one.committed is None or one.committed > at)
        ]
    return tuple(dict.fromkeys([failure.task, *others]))[:MOST_TASKS]


def _story(
    tasks: tuple[int, ...],
    breaks: Sequence[tuple[str, Failure]],
    history: History,
    lives: Mapping[int, Life],
    attempts: Sequence[Attempt],
    bands: Sequence[Band],
    at: Mapping[int, int],
) -> Story:
    mine = [one for one in attempts if one.task in tasks]
    seqs = {failure.seq for _, failure in breaks if failure.seq is not None}
    guilty = next((at[seq] for seq in sorted(seqs) if seq in at), None)
    workers = {one.worker for one in mine}
    told = [event for task in tasks if task in lives for event in _of_life(lives[task], history)]
    if told:
        begin, end = min(event.at for event in told), max(event.at for event in told)
        struck = [
            one
            for one in bands
            if one.begin <= end
            and one.end >= begin
            and (not one.workers or workers.intersection(one.workers))
        ]
    else:
        struck = []
    events = [*told, *_of_bands(struck)]
    if len(tasks) > 1:
        events = [event for event in events if _near(event, guilty)]
    events.sort(key=lambda event: (event.at, event.seq or 0))
    events = [one._replace(guilty=one.seq in seqs) if one.seq else one for one in events]
    shown = _nearest(events)
    return Story(
        title=_title(tasks),
        breaks=tuple((name, plain(failure.sentence, 600)) for name, failure in breaks),
        tasks=tasks,
        attempts=tuple(mine),
        bands=tuple(struck),
        events=tuple(shown),
        guilty=guilty,
        left_out=len(events) - len(shown),
    )


def _title(tasks: tuple[int, ...]) -> str:
    if not tasks:
        return "The run as a whole"
    if len(tasks) == 1:
        return f"Task {tasks[0]}"
    return f"Tasks {', '.join(map(str, tasks))}"


def _near(event: Event, guilty: int | None) -> bool:
    return guilty is None or abs(event.at - guilty) < 5_000_000


def _nearest(events: list[Event]) -> list[Event]:
    """At most `MOST_EVENTS` in a row, with the guilty one late among them."""
    if len(events) <= MOST_EVENTS:
        return events
    center = next((at for at, event in enumerate(events) if event.guilty), 0)
    begin = max(0, min(center - MOST_EVENTS * 3 // 4, len(events) - MOST_EVENTS))
    return events[begin : begin + MOST_EVENTS]


def _of_bands(bands: Iterable[Band]) -> Iterator[Event]:
    for band in bands:
        bite = f": {band.bite}" if band.bite else ""
        what = "dies" if band.name == "death" else f"is struck by {band.name}"
        yield Event(band.begin, band.whom, f"{what}{bite}")
        if not band.at_once:
            yield Event(band.end, band.whom, f"is free of {band.name}")


def _of_life(life: Life, history: History) -> Iterator[Event]:
    system = str(history.about.get("system", ""))
    effects = {commit.seq for commit, _ in life.effects}
    reclaimers = {
        (note.token, note.owner): note.worker for note in life.notes if note.what == "reclaimed"
    }
    renewed = set()
    beside = set()
    owners = {
        move.after.token: plain(move.after.owner)
        for move in life.moves
        if move.is_claim and move.after is not None
    }
    for move in life.moves:
        who, what, by = _move(move, system, move.seq in effects, reclaimers)
        mark = "write" if move.ended is not None and who == plain(move.ended.owner) else ""
        yield Event(move.at, who, what, by, move.seq, life.task, mark)
        if move.after is not None:
            renewed.add(move.after.expires)
        if move.ended is not None:
            beside.add((move.seq, move.ended.token))
    for commit, ended in life.ended:
        if (commit.seq, ended.token) not in beside:
            what = f"logs {plain(ended.outcome, 40)} of token {ended.token}, and changes no task"
            by = statement(system, ended.outcome)
            yield Event(commit.at, plain(ended.owner), what, by, commit.seq, life.task, "write")
    for commit, effect in life.effects:
        owner = owners.get(effect.token)
        if owner is not None:
            yield Event(
                commit.at,
                owner,
                f"commits its effect on task {life.task}",
                "",
                commit.seq,
                life.task,
                "effect",
            )
    for note in life.notes:
        if note.what == "renewed" and note.detail.isdigit() and int(note.detail) in renewed:
            continue  # the commit tells it
        said = _note(note)
        if said:
            who = plain(note.owner or note.worker)
            yield Event(note.at, who, said, task=life.task, mark=_MARKS.get(note.what, ""))


def _move(
    move: Moved,
    system: str,
    transactional: bool,
    reclaimers: Mapping[tuple[int, str], str],
) -> tuple[str, str, str]:
    """Who made this change, what it was, and by which statement."""
    before, after, ended = move.before, move.after, move.ended
    if after is None:
        return "somebody", f"deletes task {_task(move)}", ""
    if before is None and after.state == PENDING:
        what = f"enqueues task {after.task} ({plain(after.kind, 80)}), due at {when(after.due)}"
        return plain(after.source or "a client"), what, enqueueing(system, after)
    if move.is_claim:
        return plain(after.owner), _claim(before, after), statement(system, "claimed")
    if before is not None and before.state == RUNNING and after.state == RUNNING:
        expires = "no time" if after.expires is None else when(after.expires)
        what = f"renews token {after.token}, until {expires}"
        return plain(after.owner), what, statement(system, "renewed")
    if ended is not None and before is not None:
        by = statement(system, ended.outcome, transactional=transactional)
        held = f"token {before.token} of {plain(before.owner)}"
        became = f"task {after.task} is {after.state}"
        if ended.outcome in BY_HOLDER:
            what = f"writes {ended.outcome} with token {ended.token}: {became}"
            if (ended.token, ended.owner) != (before.token, before.owner):
                what += f", although {held} had the lease"
            return plain(ended.owner), what + _error(ended.error), by
        who = reclaimers.get((ended.token, ended.owner), "somebody")
        verb = "takes back" if ended.outcome == "reclaimed" else "ends"
        return plain(who), f"{verb} {held} ({plain(ended.outcome, 40)}): {became}", by
    if before is not None and before.state == RUNNING:
        what = f"makes task {after.task} {after.state} while {plain(before.owner)} holds token"
        return "somebody", f"{what} {before.token}, and logs nothing", ""
    requeued = after.state == PENDING and before is not None and before.state != PENDING
    by = statement(system, "requeued" if requeued else after.state)
    return "somebody", f"makes task {after.task} {after.state}", by


def _claim(before: Row | None, after: Row) -> str:
    until = "no time" if after.expires is None else when(after.expires)
    what = (
        f"claims task {after.task}: attempt {after.attempts} of {after.max_attempts},"
        f" token {after.token}, until {until}"
    )
    if before is not None and before.state == RUNNING:
        what += f", although {plain(before.owner)} holds token {before.token}"
        if before.expires is not None:
            what += f" until {when(before.expires)}"
    return what


def _task(move: Moved) -> int | str:
    """The task that a change is of, also when it deletes it."""
    row = move.after or move.before
    return "?" if row is None else row.task


def _error(error: str | None) -> str:
    return f" ({plain(error, 120)})" if error else ""


def _note(note: Note) -> str:
    """What a worker or client did, in words; empty for what a commit tells better."""
    detail = plain(note.detail, 120)
    of = f"task {note.task} under token {note.token}"
    match note.what:
        case "started":
            return f"enters the handler of {of}"
        case "finished":
            return f"leaves the handler of {of}: {detail}" if detail else f"leaves that of {of}"
        case "effect":
            return f"has its effect outside the database, {of}"
        case "lease-lost":
            return f"learns that it lost the lease of {of} ({detail})"
        case "refused":
            return f"is refused by the fence: {detail} of {of}"
        case "renewed":
            return f"believes that it renewed {of}; no commit shows that"
        case "acknowledged":
            return f"knows that task {note.task} is enqueued"
        case "keyed":
            return f"is told which task stands under its key: {detail}"
        case _:
            return ""
