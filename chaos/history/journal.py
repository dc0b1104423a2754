"""Journals: what workers and clients said they did, in files that survive SIGKILL.

A journal is a file `<worker>.journal` with one JSON array a line:
`[monotonic nanoseconds, what, task, token, owner, detail]`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from chaos.history.events import Note

_SUFFIX = ".journal"
_LIMIT = 4096  # bytes in a line, its newline included
_MOST_BYTES = 6  # that JSON needs for one character: a control character is six, UTF-8 at most four

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class JournalError(ValueError):
    """A journal holds a line that no `Journal` wrote."""


class Journal:
    """One worker process's journal. Any number of its threads may note at once.

    There is no lock and no buffer, because each line is one write(2) to a file opened with
    O_APPEND: the kernel holds the file's lock while it finds the end and writes there, so lines of
    several threads never mix, and what write(2) has returned for is the kernel's, not the
    process's, and outlives it. A SIGKILL can only cut the line that is being written: a process
    has one last line, so there is at most one torn line and it is the file's last.

    A worker that starts again under the same name, its predecessor dead, continues the file: the
    predecessor's torn line, if any, is cut off first. It was never acknowledged to anyone.
    """

    def __init__(self, directory: Path, worker: str) -> None:
        """Open `<directory>/<worker>.journal`. Raises OSError if that cannot be written."""
        path = directory / f"{worker}{_SUFFIX}"
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        size = os.fstat(self._file).st_size
        tail = os.pread(self._file, _LIMIT, max(0, size - _LIMIT))
        torn = len(tail) - (tail.rfind(b"\n") + 1)
        if torn:
            os.ftruncate(self._file, size - torn)

    def note(self, what: str, task: int, token: int, owner: str, detail: str = "") -> None:
        """Write one line, stamped now. `detail` is cut where the line would pass 4096 bytes.

        Raises OSError if the line was not written whole (the disk is full), and ValueError if it
        is too long even without its detail.
        """
        # The monotonic clock is one for all processes of the machine, and nobody can set it.
        now = time.monotonic_ns()
        line = _line(now, what, task, token, owner, detail)
        if len(line) > _LIMIT:
            bare = len(_line(now, what, task, token, owner, ""))
            if bare > _LIMIT:
                raise ValueError(f"owner of {len(owner)} characters is too long for a journal")
            detail = detail[:_LIMIT]
            while len(line := _line(now, what, task, token, owner, detail)) > _LIMIT:
                detail = detail[: -((len(line) - _LIMIT - 1) // _MOST_BYTES + 1)]
        written = os.write(self._file, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes of a journal's line were written")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def _line(now: int, what: str, task: int, token: int, owner: str, detail: str) -> bytes:
    text = _encode([now, what, task, token, owner, detail])
    return text.encode("utf-8", "surrogatepass") + b"\n"


def clock_offset() -> int:
    """Microseconds to add to CLOCK_MONOTONIC to get the wall clock: the tightest of 32 samples."""
    samples = []
    for _ in range(32):
        before = time.monotonic_ns()
        wall = time.time_ns()
        after = time.monotonic_ns()
        samples.append((after - before, wall - (before + after) // 2))
    return min(samples)[1] // 1000


def read_journals(directory: Path, offset_us: int) -> tuple[Note, ...]:
    """Every note of all journals in `directory`, by time; a worker's name is its file's stem.

    `offset_us` is what `clock_offset` measured during the run. A last line without its newline was
    torn by a kill and is ignored. Raises JournalError for any other line that is not a note.
    """
    names = [path.stem for path in sorted(directory.glob(f"*{_SUFFIX}"))]
    notes = [note for name in names for note in read_journal(directory, name, offset_us)]
    notes.sort(key=lambda note: note.at)  # stable: a worker's own order stands
    return tuple(notes)


def read_journal(directory: Path, worker: str, offset_us: int) -> list[Note]:
    """Every note of one worker's journal so far; none if it has no journal. See `read_journals`."""
    path = directory / f"{worker}{_SUFFIX}"
    if not path.exists():
        return []
    notes = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.endswith(b"\n"):
                break
            try:
                fields = json.loads(line.decode("utf-8", "surrogatepass"))
            except ValueError as error:
                raise JournalError(f"{path}, line {number}: not JSON: {error}") from error
            match fields:
                case [int(now), str(what), int(task), int(token), str(owner), str(detail)]:
                    at = now // 1000 + offset_us
                    notes.append(Note(at, worker, what, task, token, owner, detail))
                case _:
                    raise JournalError(f"{path}, line {number}: not a note")
    return notes
