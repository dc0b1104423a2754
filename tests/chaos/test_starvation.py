"""A worker that is given no processor says so."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from chaos.history.journal import Journal, read_journal
from chaos.starvation import note_starvation
from tests.waiting import wait_for

BURNS = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"


def starving(directory: str) -> None:
    """What the child does: the least that a worker can. Others go first."""
    os.nice(19)
    note_starvation(Journal(Path(directory), "w1"))
    time.sleep(60)


def test_a_process_that_waits_for_a_processor_notes_for_how_long(tmp_path: Path) -> None:
    [core, *_] = os.sched_getaffinity(0)
    command = f"from {__name__} import starving; starving({str(tmp_path)!r})"
    processes = [subprocess.Popen([sys.executable, "-c", command])]
    threads = Path(f"/proc/{processes[0].pid}/task")
    journal = tmp_path / "w1.journal"
    try:
        wait_for(lambda: len(list(threads.iterdir())) == 2, "the process to come up")
        processes += [subprocess.Popen([sys.executable, "-c", BURNS]) for _ in range(3)]
        ours = [int(thread.name) for thread in threads.iterdir()]
        for number in (*ours, *(process.pid for process in processes)):
            os.sched_setaffinity(number, [core])
        wait_for(lambda: b"starved" in journal.read_bytes(), "a note")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    [note, *_] = read_journal(tmp_path, "w1", 0)
    assert (note.worker, note.task, int(note.detail) >= 50_000) == ("w1", 0, True)
