"""What a unique key promises, to the queue and to the client: `key-once`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from chaos.history.events import PENDING, RUNNING, History, Key, Note, Row, Rules, Step
from chaos.history.lives import Life, Moved
from chaos.invariants.verdict import Verdict
from chaos.invariants.words import Found, clock, many

# A commit has its time before others can see what it did. How much earlier that is at most, besides
# what the machine lagged: the server flushes its log in between, or crashes and recovers.
_SEEN_LATER = 1_000_000

_Place = tuple[str, Key]  # a kind and a key: of those that live, one task may have it


@dataclass(slots=True)
class _Tally:
    """What was counted over all tasks."""

    enqueues: int = 0
    again: int = 0  # how often a key was asked for that had been taken before
    created: int = 0
    standing: int = 0


def key_once(history: History, lives: Mapping[int, Life]) -> Verdict:
    """At every commit a kind, a key and its scope have one live task; asking again changes nothing.

    What a client was told under a key must be true: a task that it created is there, and only one
    call created it; one that stood in its way had the key at some moment of the call.
    """
    found, tally = Found(), _Tally()
    _judge_places(history, found, tally)
    asked = {note.task for note in history.notes if note.what == "keyed"}
    for life in lives.values():
        if any(move.after is not None and move.after.key is not None for move in life.moves):
            for move in life.moves:
                wrong = _changed(move, history.rules)
                if wrong is not None:
                    found.add(life.task, move.seq, wrong)
        if life.task in asked:
            _judge_answers(life, history.phases.lag + _SEEN_LATER, found, tally)
    judged = tally.enqueues + tally.created + tally.standing
    return found.verdict(
        "key-once",
        judged,
        f"{many(tally.enqueues, 'task')} under keys, one at a time;"
        f" {many(tally.standing, 'call')} told truly of one that stood",
        "no task was enqueued under a key",
        {
            "keyed": tally.enqueues,
            "asked_again": tally.again,
            "told_created": tally.created,
            "told_standing": tally.standing,
        },
        "no key was asked for twice" if judged and not tally.again else None,
    )


def _place(row: Row | None) -> _Place | None:
    """What this task keeps others from, if it does."""
    if row is None or row.key is None:
        return None
    match row.key.until:
        case "started":
            live = row.state == PENDING and row.token == 0
        case "finished":
            live = row.state in (PENDING, RUNNING)
        case _:
            live = True  # the period is in the key
    return (row.kind, row.key) if live else None


def _judge_places(history: History, found: Found, tally: _Tally) -> None:
    """At the end of each commit, see to whom the keys belong that tasks came to in it."""
    places: dict[int, _Place] = {}  # of each live task
    owners: dict[_Place, set[int]] = {}
    for commit in history.commits:
        came: dict[int, _Place] = {}
        for task, row in commit.changes:
            was, now = places.get(task), _place(row)
            if was == now:
                continue
            if was is not None:
                del places[task]
                owners[was].discard(task)
            came.pop(task, None)
            if now is not None:
                places[task] = now
                tally.again += now in owners
                owners.setdefault(now, set()).add(task)
                came[task] = now
        tally.enqueues += len(came)
        for task, place in came.items():
            others = owners[place] - {task}
            if others:
                which = " and ".join(f"task {other}" for other in sorted(others)[:3])
                found.add(
                    task,
                    commit.seq,
                    f"came to live under the {_named(place)} at {clock(commit.at)},"
                    f" where {which} lived already",
                )


def _named(place: _Place) -> str:
    kind, key = place
    return f"key {key.text!r} of kind {kind} (until {key.until})"


def _changed(move: Moved, rules: Rules) -> str | None:
    """How this change of a task that was enqueued before is none that its own life makes."""
    before, after = move.before, move.after
    if before is None or after is None:
        return None
    if (before.kind, before.key) != (after.kind, after.key):
        return f"its key was changed from {before.key} to {after.key} at {clock(move.at)}"
    if move.ended is not None or move.is_claim:
        return None
    if before.state != after.state:
        if Step(before.state, after.state, None) in rules.steps:
            return None
    elif after.state == RUNNING and after == before._replace(expires=after.expires):
        return None  # renewed
    return (
        f"has the key {after.key.text if after.key else None!r} and was changed from {before.state}"
        f" to {after.state} at {clock(move.at)}, although no attempt of it began or ended"
    )


def _judge_answers(life: Life, slack: int, found: Found, tally: _Tally) -> None:
    """Compare what clients were told of this task with what the log shows of it."""
    creators = 0
    for note in life.notes:
        if note.what != "keyed":
            continue
        answer, sent, asked = note.detail.split(" ", 2)
        created = answer == "created"
        creators += created
        tally.created += created
        tally.standing += not created
        tally.again += not created
        wrong = _untrue(life, note, int(sent), asked, created, slack)
        if wrong is None and created and creators > 1:
            wrong = f"{many(creators, 'call')} were told to have created it"
        if wrong is not None:
            found.add(life.task, life.moves[0].seq if life.moves else None, wrong)


def _untrue(life: Life, note: Note, sent: int, asked: str, created: bool, slack: int) -> str | None:
    """Why the answer that a client got under a key is not true."""
    verb = "was created" if created else "stands"
    told = f"{note.worker} was told at {clock(note.at)} that it {verb} under the key {asked!r}"
    row = life.moves[0].after if life.moves else None
    if row is None:
        return f"{told}, but no commit ever inserted it"
    key = row.key
    if key is None or not (key.text == asked or _is_period_of(key, asked)):
        return f"{told}, but it was enqueued under {key.text if key else None!r}"
    if created:
        return None
    begun: int | None = None
    last: int | None = None
    for move in life.moves:
        lives = _place(move.after) is not None
        if lives and begun is None:
            begun = move.at
        elif not lives and begun is not None:
            if begun - slack <= note.at and move.at + slack >= sent:
                return None
            begun, last = None, move.at
    if begun is not None:
        if begun - slack <= note.at:
            return None
        return f"{told}, but it was enqueued at {clock(begun)} only"
    return f"{told}, but when it was asked at {clock(sent)} it had lost the key at {clock(last)}"


def _is_period_of(key: Key, asked: str) -> bool:
    return key.until == "period" and key.text.startswith(f"{asked}@")
