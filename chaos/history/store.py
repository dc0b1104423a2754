"""A history as a file: JSON lines that can be judged again anywhere, gzip if the name ends in .gz.

    {"format":"leaseproof-history","version":6}
    {"about":{…},"rules":[…],"phases":[…],"unknown":0,"named":[…]}
    ["commit",seq,at,xid,[[task,row or null],…],[ended,…],[effect,…]]
    ["note",…]  ["fault",…]  ["final",…]
    ["failover",died,opened,synchronous,[[seq,at,xid,…],…]]
    ["end",CRC-32 of all lines before]

A record is an array of its fields in the order of `events`. The last line tells a whole file from
a cut one, and its checksum finds damage that still reads as JSON.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

from chaos.history.collector import uncollected
from chaos.history.events import (
    Change,
    Commit,
    Effect,
    Ended,
    Failover,
    Fault,
    History,
    Key,
    Note,
    Occurrence,
    Phases,
    Policy,
    Recurrence,
    Row,
    Rules,
    Step,
)
from chaos.history.events import Final as FinalRow

FORMAT: Final = "leaseproof-history"
# Version 5 says which of the scenario's faults was injected and bit. Older ones say only of what
# kind it was, so that one could cover for another of its kind: they are refused. Version 6 has the
# priorities of tasks, and for how long they may be passed over; of 5 that is not judged.
VERSION: Final = 6
OLDEST: Final = 5

# Raw text, not \u escapes: two lone surrogates side by side would come back from escapes as the
# one character they spell. "surrogatepass" gives each its own bytes.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().raw_decode
_UTF8 = ("utf-8", "surrogatepass")


class HistoryError(Exception):
    """A file that is not a whole, undamaged history of a known version."""


def save(history: History, path: Path) -> None:
    """Write a history so that `path` is either what it was or whole, whatever happens meanwhile.

    `history.about` must be JSON data (TypeError otherwise; tuples would come back as lists).
    Raises OSError if the file cannot be written.
    """
    checksum = 0
    with _replacing(path) as out:
        for record in _records(history):
            line = _encode(record).encode(*_UTF8) + b"\n"
            checksum = zlib.crc32(line, checksum)
            out.write(line)
        out.write(_encode(["end", checksum]).encode() + b"\n")


def load(path: Path) -> History:
    """Read a history back, equal to the one saved.

    Raises HistoryError, naming the file and the line, if it is not one, if a newer version wrote
    it, or if it was cut or damaged; OSError if it cannot be read.
    """
    head: dict[str, Any] = {}
    commits: list[Commit] = []
    notes: list[Note] = []
    faults: list[Fault] = []
    finals: list[FinalRow] = []
    failovers: list[Failover] = []
    # A million events repeat a few kinds, states, owners and policies: one object for each.
    shared: dict[Any, Any] = {}
    share = shared.setdefault
    checksum = number = 0
    ended = False
    try:
        with _opened(path) as lines, uncollected():
            for number, line in enumerate(lines, 1):
                text = line.decode(*_UTF8)
                record, end = _decode(text)
                if ended or text[end:] != "\n":
                    raise ValueError("not one JSON value and a newline")
                if number == 1:
                    _check_header(record)
                elif number == 2:
                    head = record
                elif record[0] == "commit":
                    commits.append(_commit(record[1:], shared))
                elif record[0] == "note":
                    _, at, worker, what, task, token, owner, detail = record
                    worker, what, owner = (
                        share(worker, worker),
                        share(what, what),
                        share(owner, owner),
                    )
                    notes.append(Note(at, worker, what, task, token, owner, detail))
                elif record[0] == "fault":
                    faults.append(Fault(*record[1:]))
                elif record[0] == "final":
                    finals.append(FinalRow(*record[1:]))
                elif record[0] == "failover":
                    _, died, opened, synchronous, gone = record
                    lost = tuple([_commit(one, shared) for one in gone])
                    failovers.append(Failover(died, opened, synchronous, lost))
                elif record != ["end", checksum]:
                    raise ValueError("unknown kind of line, or the contents were changed")
                else:
                    ended = True
                checksum = zlib.crc32(line, checksum)
        if not ended:
            raise ValueError("the file is cut off here")
        return History(
            about=head["about"],
            rules=_rules(head["rules"]),
            phases=Phases(*head["phases"]),
            commits=tuple(commits),
            notes=tuple(notes),
            faults=tuple(faults),
            finals=tuple(finals),
            failovers=tuple(failovers),
            unknown=head["unknown"],
            named=frozenset(head["named"]),
        )
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise HistoryError(f"{path}, after line {number}: bad gzip data: {error}") from error
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise HistoryError(f"{path}, line {number}: {error}") from error


def _records(history: History) -> Iterator[object]:
    rules, phases = history.rules, history.phases
    steps = [(step.before, step.after, step.outcome) for step in rules.steps]
    yield {"format": FORMAT, "version": VERSION}
    yield {
        "about": history.about,
        # Sorted, so that equal histories are equal files.
        "rules": [
            sorted(steps, key=lambda step: (step[0], step[1], step[2] or "")),
            sorted(rules.gives_back),
            rules.claim_limit,
            rules.snooze_delay,
            dict(sorted(rules.limits.items())),
            dict(sorted(rules.caps.items())),
            dict(sorted(rules.schedules.items())),
            rules.passed_over,
        ],
        "phases": [
            phases.began,
            phases.healed,
            phases.ended,
            phases.reclaim_bound,
            phases.progress_bound,
            phases.lag,
        ],
        "unknown": history.unknown,
        "named": sorted(history.named),
    }
    for commit in history.commits:
        yield ("commit", *commit)
    for note in history.notes:
        yield ("note", *note)
    for fault in history.faults:
        yield ("fault", *fault)
    for final in history.finals:
        yield ("final", *final)
    for failover in history.failovers:
        yield ("failover", *failover)


def _check_header(header: object) -> None:
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ValueError("this is not a saved history")
    version = header["version"]
    if version > VERSION:
        raise ValueError(f"format version {version} is newer than this program's, {VERSION}")
    if version < 1:
        raise ValueError(f"there is no format version {version}")
    if version < OLDEST:
        raise ValueError(
            f"format version {version} does not say which fault of its scenario bit: run the"
            " scenario again, or judge it with the program that wrote it"
        )


def _rules(fields: list[Any]) -> Rules:
    steps, gives_back, claim_limit, snooze_delay, limits, caps, schedules, *more = fields
    return Rules(
        frozenset(Step(*step) for step in steps),
        frozenset(gives_back),
        claim_limit,
        snooze_delay,
        limits,
        caps,
        {name: Recurrence(*recurrence) for name, recurrence in schedules.items()},
        *more,
    )


def _commit(record: list[Any], shared: dict[Any, Any]) -> Commit:
    seq, at, xid, changes, ended, effects = record
    return Commit(
        seq,
        at,
        xid,
        tuple([Change(task, row and _row(row, shared)) for task, row in changes]),
        tuple([_ended(one, shared) for one in ended]),
        tuple([Effect(*effect) for effect in effects]),
    )


def _row(fields: list[Any], shared: dict[Any, Any]) -> Row:
    task, kind, state, due, attempts, cap, token, owner, expires, claimed, policy, *rest = fields
    error, source, counted, key, occurrence, *more = rest
    if policy is not None:
        policy = Policy(*policy)
    if key is not None:
        key = Key(*key)
    if occurrence is not None:
        occurrence = Occurrence(*occurrence)
    share = shared.setdefault
    return Row(
        task,
        share(kind, kind),
        share(state, state),
        due,
        attempts,
        cap,
        token,
        share(owner, owner),
        expires,
        claimed,
        share(policy, policy),
        error,
        share(source, source),
        counted,
        share(key, key),
        share(occurrence, occurrence),
        *more,
    )


def _ended(fields: list[Any], shared: dict[Any, Any]) -> Ended:
    task, token, owner, attempt, claimed, finished, outcome, error = fields
    share = shared.setdefault
    return Ended(
        task,
        token,
        share(owner, owner),
        attempt,
        claimed,
        finished,
        share(outcome, outcome),
        error,
    )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as raw:
        if path.suffix != ".gz":
            yield raw
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as unzipped:
            # GzipFile hands out lines one Python call at a time, this in C.
            yield cast(BinaryIO, io.BufferedReader(unzipped, 1 << 20))


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write that becomes `path` on success, and is gone after a failure."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb", 1 << 20) as raw:
            if path.suffix == ".gz":
                # Neither name nor time of the writing, so that equal histories are equal files.
                with gzip.GzipFile("", "wb", 6, raw, 0) as zipped:
                    yield cast(BinaryIO, zipped)
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
