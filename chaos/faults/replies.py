"""The faults that what a worker writes is committed, and it never hears of it."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from fcntl import LOCK_EX, flock
from typing import ClassVar, Literal

from pydantic import Field

from chaos.faults.fault import Arena, Injection, WorkerFault
from chaos.fleet import Seat
from chaos.history.events import Commit, History, worker_of
from chaos.systems.replies import DIRECTORY, Loss


class Losing(WorkerFault):
    """A fault that loses replies to a worker, of one kind of write.

    It bit if there are such commits of the worker in the log, made while it waited for a reply
    that, as it says itself, never came. The commit's time is the server's and the wait's the
    worker's: one machine, one clock.
    """

    needs_proxy: ClassVar[bool] = True
    commits_alone: ClassVar[bool] = False
    lasts: float = Field(gt=0, le=3600)
    share: float = Field(default=0.5, gt=0, le=1)

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Tell the worker which proxy it is to have cut before it sends; see its adapter."""
        proxy = arena.proxies[seat.number]
        directory = arena.fleet.directory / DIRECTORY
        directory.mkdir(exist_ok=True)
        file = directory / seat.name
        # Whole or not at all: the worker looks at any moment.
        written = directory / f"{seat.name}.new"
        seed = arena.draw.getrandbits(32)
        loss = Loss(proxy.address(), self.share, seed, self.commits_alone)
        written.write_text(json.dumps(loss))
        written.rename(file)

        def heal() -> int:
            with file.open() as healed:
                file.unlink()
                flock(healed, LOCK_EX)  # until the worker is done with the reply it loses now
            proxy.heal()
            return 0

        return heal

    def bite(self, injection: Injection, history: History) -> str | None:
        """The worker committed what it waited for in vain."""
        own = [
            commit
            for commit in history.commits
            if _is_by(commit, injection.target) and (commit.effects or not self.commits_alone)
        ]
        own.sort(key=lambda commit: commit.at)
        times = [commit.at for commit in own]
        lost = set()
        for note in history.notes:
            if (
                note.worker == injection.target
                and note.what == "reply-lost"
                and injection.placed <= note.at <= injection.ended
            ):
                first = bisect_left(times, note.at - int(note.detail))
                lost |= {commit.seq for commit in own[first:] if commit.at <= note.at}
        return f"committed {len(lost)} times without hearing of it" if lost else None


class LoseReplies(Losing):
    """Lose the replies to this share of all that a worker writes."""

    kind: Literal["lose-replies"]


class LoseCommits(Losing):
    """Lose the replies to this share of the COMMITs of a worker's transactional handlers.

    Among all that it writes these are few, and to lose one of the others first may mean that it has
    no session to send them in.
    """

    commits_alone: ClassVar[bool] = True
    kind: Literal["lose-commits"]


def _is_by(commit: Commit, worker: str) -> bool:
    return any(worker_of(ended.owner) == worker for ended in commit.ended) or any(
        row is not None and row.owner is not None and worker_of(row.owner) == worker
        for _, row in commit.changes
    )
