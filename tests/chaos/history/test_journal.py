"""Journals survive what their writers do not."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path

import pytest

from chaos.history.events import Note
from chaos.history.journal import Journal, JournalError, clock_offset, read_journals

WRITER = """
import sys
from pathlib import Path
from chaos.history.journal import Journal

journal = Journal(Path(sys.argv[1]), "victim")
number, last = 0, int(sys.argv[2])
while number != last:
    number += 1
    journal.note("started", number, 1, "victim/1", "x" * (number % 3000))
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
sys.stdin.read()
"""


@pytest.mark.parametrize("last", [-1, 503], ids=["killed while it writes", "killed later"])
def test_whatever_a_killed_process_acknowledged_is_in_its_journal(
    tmp_path: Path, last: int
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path), str(last)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        try:
            acknowledged = [child.stdout.readline() for _ in range(max(last, 500))]
        finally:
            child.kill()
        acknowledged += child.stdout.readlines()
    count = sum(line.endswith("\n") for line in acknowledged)
    assert count >= 500
    tasks = [note.task for note in read_journals(tmp_path, 0)]
    assert tasks == list(range(1, len(tasks) + 1))
    assert len(tasks) >= count


def test_lines_of_several_threads_never_mix(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w1")

    def write(thread: int) -> None:
        for number in range(200):
            journal.note("effect", thread, number, "w1/x", str(thread) * 3900)

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    journal.close()
    notes = read_journals(tmp_path, 0)
    assert len(notes) == 800
    assert {(note.task, note.detail) for note in notes} == {
        (thread, str(thread) * 3900) for thread in range(4)
    }


def test_notes_carry_the_worker_and_the_wall_clock_by_time(tmp_path: Path) -> None:
    first, second = Journal(tmp_path, "w1"), Journal(tmp_path, "w2.b")
    offset = clock_offset()
    before = time.time_ns() // 1000
    first.note("claimed", 7, 3, "w1/abc", "30000000")
    second.note("acknowledged", 8, 0, "")
    first.note("finished", 7, 3, "w1/abc", "ok")
    after = time.time_ns() // 1000
    first.close()
    second.close()
    notes = read_journals(tmp_path, offset)
    assert [note[1:] for note in notes] == [
        ("w1", "claimed", 7, 3, "w1/abc", "30000000"),
        ("w2.b", "acknowledged", 8, 0, "", ""),
        ("w1", "finished", 7, 3, "w1/abc", "ok"),
    ]
    times = [before, *(note.at for note in notes), after]
    # Two readings of two clocks can be a little off; an offset of another kind is far off.
    assert all(later - earlier > -1000 for earlier, later in pairwise(times))


def test_hostile_text_comes_back_as_it_was(tmp_path: Path) -> None:
    owner, detail = 'w\0\n"\\ \u2028\ud800', "\ud83d\ude00 \U0001f600 \x85\r"
    journal = Journal(tmp_path, "w1")
    journal.note("effect", 1, 2, owner, detail)
    journal.close()
    (note,) = read_journals(tmp_path, 0)
    assert (note.owner, note.detail) == (owner, detail)


@pytest.mark.parametrize("character", ["x", "\0", "\U0001f600", '"'])
def test_a_long_detail_is_cut_to_fit_one_write(tmp_path: Path, character: str) -> None:
    detail = character * 100_000
    journal = Journal(tmp_path, "w1")
    journal.note("refused", 1, 2, "w1/x", detail)
    journal.close()
    size = (tmp_path / "w1.journal").stat().st_size
    assert 4096 - 12 <= size <= 4096
    (note,) = read_journals(tmp_path, 0)
    assert note.detail
    assert detail.startswith(note.detail)


def test_an_owner_that_fits_no_line_is_refused(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "w1")
    with pytest.raises(ValueError, match="owner of 5000 characters"):
        journal.note("started", 1, 2, "x" * 5000, "detail")
    journal.close()
    assert read_journals(tmp_path, 0) == ()


GOOD = b'[1000,"started",1,2,"w1/x",""]\n'
NOTE = Note(1, "w1", "started", 1, 2, "w1/x", "")


def test_a_torn_last_line_is_ignored(tmp_path: Path) -> None:
    for length in range(len(GOOD)):
        (tmp_path / "w1.journal").write_bytes(GOOD + GOOD[:length])
        assert read_journals(tmp_path, 0) == (NOTE,)


def test_a_restarted_worker_continues_after_the_torn_line(tmp_path: Path) -> None:
    (tmp_path / "w1.journal").write_bytes(GOOD + GOOD[:-1])
    journal = Journal(tmp_path, "w1")
    journal.note("finished", 1, 2, "w1/x", "ok")
    journal.close()
    assert [note.what for note in read_journals(tmp_path, 0)] == ["started", "finished"]


@pytest.mark.parametrize(
    "damage",
    [
        GOOD[:-8] + b"\n",
        b"\n",
        b"[]\n",
        GOOD.replace(b"1,2", b'"1",2'),
        GOOD.replace(b',""', b""),
        b"\xff" + GOOD,
        b"\0" * 20 + b"\n",
    ],
)
def test_any_other_damage_names_the_file_and_the_line(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "w1.journal").write_bytes(GOOD + damage + GOOD)
    with pytest.raises(JournalError, match=r"w1\.journal, line 2: not "):
        read_journals(tmp_path, 0)


def test_a_damaged_last_line_with_its_newline_is_no_torn_line(tmp_path: Path) -> None:
    (tmp_path / "w1.journal").write_bytes(GOOD + GOOD[:-3] + b"\n")
    with pytest.raises(JournalError, match="line 2"):
        read_journals(tmp_path, 0)
