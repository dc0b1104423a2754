"""Histories for reports: a busy run of any length, a run that went wrong, and hostile text."""

from __future__ import annotations

from dataclasses import replace

from chaos.history.events import History
from tests.chaos.invariants.build import Story

# Whatever a page or a plotting library might take for something else.
HOSTILE = "</script><script>hostile()</script><img src=x onerror=hostile()>$$x$$ <b>&amp; \0\ud800"


def busy(attempts: int, workers: int = 8, hostile: str = "boom") -> History:
    """Every attempt of a run of so many: most complete, some fail, some are taken back."""
    story = Story()
    kinds = ("book-payment", "send-receipt", "ship-parcel", "search-file")
    for number in range(attempts):
        task, at = number + 1, number * 0.003
        worker = f"w{number % workers + 1}.{1 + number * 4 // attempts}"
        story.enqueue(task, at=at, kind=kinds[number % 4], max_attempts=20)
        story.claim(task, by=worker, at=at + 0.1, owner=f"{worker}/{number:012x}")
        if number % 50 == 7:
            story.note("started", task, at + 0.101).reclaim(task, at + 5.3)
            story.note("finished", task, at + 6, token=1, detail="completed")
            continue
        story.ran(task, at + 0.101, at + 0.12)
        if number % 10 == 3:
            story.fail(task, at + 0.121, due=at + 9, error=f"{hostile} {number % 5}")
        else:
            story.complete(task, at + 0.121)
    for number in range(1, 40):
        target = f"w{number % workers + 1}.{1 + number // 10}"
        story.fault("pause", "inject", target=target, at=number * attempts * 0.003 / 40, which=0)
    end = attempts * 0.003 + 10
    return story.history(healed=end - 8, ended=end)


def overwritten() -> History:
    """A worker is paused past its lease and completes the task that another one runs by then."""
    story = Story()
    story.enqueue(7, at=0, kind="slow").acknowledged(7, at=0.1).claim(7, by="w1.1", at=1)
    story.note("started", 7, 1.1)
    story.fault("pause", "plan", target="", at=0, detail="1")
    story.fault("pause", "inject", target="w1.1", at=2, which=0)
    story.reclaim(7, at=6.5, cause=False).claim(7, by="w2.1", at=7).note("started", 7, 7.1)
    story.fault("pause", "heal", target="w1.1", at=8)
    story.note("effect", 7, 8.1, token=1)
    story.note("finished", 7, 8.2, token=1, detail="completed")
    story.complete(7, at=8.3, token=1)
    story.note("refused", 7, 9, token=2, detail="complete")
    story.fault("pause", "bite", target="w1.1", at=40, detail="woke up as a zombie of 1 lease")
    about: dict[str, object] = {
        "scenario": "overwritten",
        "system": "leaseproof:complete-without-fence",
        "seed": 3,
        "began": "2026-01-01T12:00:00Z",
    }
    history = story.history(named=["fenced", "no-lost-task"])
    return replace(history, about=about)


def hostile() -> History:
    """One attempt, which fills the whole picture, and hostile text wherever a history has text."""
    # Several targets have spaces between them, and a worker's name ends at a slash.
    story, worker = Story(), "".join(HOSTILE.split()).replace("/", "")
    story.enqueue(1, at=0, kind=HOSTILE, source=HOSTILE, max_attempts=1)
    story.claim(1, owner=f"{worker}/{HOSTILE}", at=0.1, lease=60).note("started", 1, 0.2)
    story.note("lease-lost", 1, 20, detail=HOSTILE)
    story.fault(HOSTILE, "plan", target="", at=0, detail="1")
    story.fault("kill", "bite", target=worker, at=30, detail=HOSTILE)
    story.fault(HOSTILE, "inject", "bite", target=worker, at=0.1, detail=HOSTILE)
    story.note("finished", 1, 39, detail=HOSTILE)
    story.end(1, 39, "failed", logged=HOSTILE, state="dead", error=None)  # no error kept: it fails
    about: dict[str, object] = {"scenario": HOSTILE, "system": HOSTILE, HOSTILE: HOSTILE, "seed": 1}
    return replace(story.history(named=["attempts-bounded"]), about=about)
