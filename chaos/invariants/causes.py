"""What was done to workers, and when: whether that explains a lost lease or the end of a process.

A worker that is alive and left alone renews its leases. So a lease that ran out on such a worker
was not renewed, or its result was thrown away, and that is the fault of the system under test.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from chaos.history.events import RUNNER, SERVER_WIDE, STARVED, Fault, History, Note
from chaos.history.lives import Life

_Stretch = tuple[int, int]  # from when to when
_FOREVER = 2**63

# A worker that is told to stop must still end or renew what it holds: that explains nothing.
_ORDERS = frozenset({"terminate"})
# Of the server, but neither keeps a worker from renewing the leases that it holds. Nor does a
# row-lock, which `rows_locked` tells.
_ASIDE = frozenset({"old-transaction", "stale-statistics"})
# A lease is renewed two or three times in its length, so what takes less of it is no excuse.
_SHARE = 3


def heard_of(history: History) -> set[str]:
    """The workers and clients that said something of what they did."""
    return {note.worker for note in history.notes if note.what != STARVED}


class Causes:
    """The faults of a history, by whom they struck."""

    def __init__(self, history: History, lives: Mapping[int, Life]) -> None:
        """Pair each injection with its heal, and find the runs of tasks that are faults."""
        self._lag = history.phases.lag
        self._ordered: dict[str, int] = {}
        workers: defaultdict[str, list[_Stretch]] = defaultdict(list)
        everyone: list[_Stretch] = []
        locks: list[_Stretch] = []
        heals: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
        kinds = set()
        # From the last to the first: so the nearest heal is known when its injection comes.
        for at, name, action, target, *_ in sorted(history.faults, key=_order, reverse=True):
            if action == "heal":
                heals[name, target].append(at)
            elif action == "death":
                workers[target].append((at - self._lag, _FOREVER))  # it was noticed so late
            elif action == "inject":
                later = heals[name, target]
                healed = later.pop() if later else None
                if name == "row-lock":
                    locks.append((at, at if healed is None else healed))
                elif name in _ASIDE:
                    continue
                elif target in SERVER_WIDE:
                    everyone.append((at, at if healed is None else healed))
                elif target.endswith(" tasks"):
                    kinds.add(name)
                else:
                    for worker in target.split():
                        if name in _ORDERS:
                            self._ordered[worker] = at
                        else:
                            workers[worker].append((at, _FOREVER if healed is None else healed))
        self._everyone = _Stretches(everyone)
        self._locks = _Stretches(locks)
        self._workers = {worker: _Stretches(found) for worker, found in workers.items()}
        # Who plans faults tells of deaths. Otherwise a worker that fell silent may be dead.
        told = any(fault.action in ("plan", "death") for fault in history.faults)
        self._last: dict[str, int] = {}
        for note in () if told else history.notes:
            if note.what == STARVED:
                continue  # the harness's own word
            self._last[note.worker] = max(note.at, self._last.get(note.worker, note.at))
        busy: defaultdict[str, list[_Stretch]] = defaultdict(list)
        for life in lives.values() if kinds else ():
            if life.kind in kinds:
                for worker, stretch in _runs(life.notes):
                    busy[worker].append(stretch)
        self._busy = {worker: _Stretches(found) for worker, found in busy.items()}
        self._starved: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for note in history.notes:
            if note.what == STARVED:
                self._starved[note.worker].append((note.at, int(note.detail)))
        for waits in self._starved.values():
            waits.sort()

    def struck(self, worker: str, begin: int, end: int) -> bool:
        """Whether a fault of this worker or of all was in place, or it died, in this time."""
        own = self._workers.get(worker)
        return self._everyone.meet(begin, end) or (own is not None and own.meet(begin, end))

    def rows_locked(self, begin: int, end: int) -> bool:
        """Whether a session of the harness held rows locked in this time."""
        return self._locks.meet(begin, end)

    def ordered(self, worker: str, end: int) -> bool:
        """Whether the worker had been told to stop by then."""
        return self._ordered.get(worker, end) < end

    def hogged(self, worker: str, at: int) -> bool:
        """Whether a task that is a fault ran on the worker then, and nobody ever saw it end."""
        busy = self._busy.get(worker)
        return busy is not None and any(until == _FOREVER for _, until in busy.meeting(at, at))

    def explain(self, worker: str, begin: int, end: int) -> bool:
        """Whether anything explains that a lease, set at `begin`, ran out on this worker at `end`.

        That is a fault, a death, a machine that gave nobody, or not it, a processor, or a task
        that is a fault: one that killed the worker or kept it from its renewals. Where the history
        cannot tell of deaths, it is also that the worker was never heard of again.
        """
        length = end - begin
        if self.struck(worker, begin, end):
            return True
        if self._last.get(worker, end + 1) <= end:
            return True
        if self.starved(worker, begin, end):
            return True
        busy = self._busy.get(worker)
        return busy is not None and any(
            until == _FOREVER  # nobody saw it end: it may have taken the worker with it
            or (min(until, end) - max(since, begin)) * _SHARE > length
            for since, until in busy.meeting(begin, end)
        )

    def starved(self, worker: str, begin: int, end: int) -> bool:
        """Whether it waited for a processor for so long that its lease may be lost for that: by its
        own word, or by the harness's, on the same machine at the same time."""
        waited = max(self._waited(worker, begin, end), self._waited(RUNNER, begin, end))
        return waited * _SHARE > end - begin

    def _waited(self, worker: str, begin: int, end: int) -> int:
        """For how long it waited for a processor then. A wait that is noted after `end` ended after
        it: of that the part before counts."""
        waits = self._starved.get(worker, ())
        total = 0
        for index in range(bisect_right(waits, (begin, 0)), len(waits)):
            at, length = waits[index]
            total += max(0, min(at, end) - max(at - length, begin))
            if at > end:
                break
        return total


class _Stretches:
    """Stretches of time, to be asked often whether one of them meets another."""

    def __init__(self, stretches: Iterable[_Stretch]) -> None:
        self._ranked = sorted(stretches)
        self._since = [since for since, _ in self._ranked]
        # How far the stretches up to each one reach: of those that began in time, the last tells
        # whether any lasted long enough.
        self._reach = list(accumulate((until for _, until in self._ranked), max))

    def meet(self, begin: int, end: int) -> bool:
        """Whether one of them has a moment in common with this time, its ends included."""
        index = bisect_right(self._since, end)
        return index > 0 and self._reach[index - 1] >= begin

    def meeting(self, begin: int, end: int) -> Iterator[_Stretch]:
        """Those of them that have a moment in common with this time, the latest to begin first."""
        for index in range(bisect_right(self._since, end) - 1, -1, -1):
            if self._reach[index] < begin:
                return  # nor do those before it reach so far
            if self._ranked[index][1] >= begin:
                yield self._ranked[index]


def _order(fault: Fault) -> tuple[int, bool]:
    return fault.at, fault.action == "heal"


def _runs(notes: Iterable[Note]) -> Iterable[tuple[str, _Stretch]]:
    """When each attempt of a task ran, and on which worker."""
    started: dict[tuple[int, str], Note] = {}
    for note in notes:
        key = (note.token, note.owner)
        if note.what == "started":
            started[key] = note
        elif note.what == "finished" and key in started:
            yield note.worker, (started.pop(key).at, note.at)
    for note in started.values():
        yield note.worker, (note.at, _FOREVER)
