"""What a simulated queue has told so far: its commits, notes and faults, and the rows they left."""

from __future__ import annotations

from collections.abc import Sequence

from chaos.history.events import (
    PENDING,
    RUNNING,
    Change,
    Commit,
    Effect,
    Ended,
    Fault,
    Final,
    History,
    Note,
    Phases,
    Row,
    Rules,
)
from chaos.invariants.judge import INVARIANTS


class Told:
    """A history in the making. `now` is when whatever is told next happens, in microseconds.

    rows: each task as it is now. running, live: which tasks are running, and how many are pending
    or running. of_kind: how many leases each kind has. outstanding: how many living tasks count
    under a cap. keys: whose each key is.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.rows: dict[int, Row] = {}
        self.running: set[int] = set()
        self.live = 0
        self.of_kind: dict[str, int] = {}
        self.outstanding = 0
        self.keys: dict[str, int] = {}
        self._commits: list[Commit] = []
        self._notes: list[Note] = []
        self._faults: list[Fault] = []
        self._in_commits = 0

    @property
    def events(self) -> int:
        """How many events there are: changes, ends of attempts, effects, notes and faults."""
        return self._in_commits + len(self._notes) + len(self._faults)

    def commit(
        self, rows: Sequence[Row], ended: Sequence[Ended] = (), effects: Sequence[Effect] = ()
    ) -> None:
        """One transaction that left these rows."""
        number = len(self._commits) + 1
        changes = tuple([Change(row.task, row) for row in rows])
        self._commits.append(
            Commit(number, self.now, 700 + number, changes, tuple(ended), tuple(effects))
        )
        self._in_commits += len(rows) + len(ended) + len(effects)
        for row in rows:
            self._count(self.rows.get(row.task), -1)
            self._count(row, 1)
            self.rows[row.task] = row

    def _count(self, row: Row | None, by: int) -> None:
        if row is None or row.state not in (PENDING, RUNNING):
            return
        self.live += by
        self.outstanding += by * row.counted
        if row.state == RUNNING:
            self.of_kind[row.kind] = self.of_kind.get(row.kind, 0) + by
            (self.running.add if by > 0 else self.running.discard)(row.task)
        if row.key is not None and by > 0:
            self.keys[row.key.text] = row.task
        elif row.key is not None:
            del self.keys[row.key.text]

    def note(
        self,
        worker: str,
        what: str,
        task: int,
        row: Row | None = None,
        detail: str = "",
        later: int = 0,
    ) -> None:
        """What a worker or client says, `later` than now: of the lease that this row is, if any."""
        token, owner = (0, "") if row is None else (row.token, row.owner or "")
        self._notes.append(Note(self.now + later, worker, what, task, token, owner, detail))

    def fault(self, name: str, action: str, target: str = "", detail: str = "") -> None:
        """What was done to the queue."""
        self._faults.append(Fault(self.now, name, action, target, detail))

    def history(self, rules: Rules, phases: Phases) -> History:
        """All of it."""
        return History(
            about={"scenario": "simulated", "seed": 0, "system": "simulated"},
            rules=rules,
            phases=phases,
            commits=tuple(self._commits),
            notes=tuple(sorted(self._notes, key=lambda note: note.at)),
            faults=tuple(self._faults),
            finals=tuple([_final(row) for row in self.rows.values()]),
            named=frozenset(INVARIANTS),
        )


def _final(row: Row) -> Final:
    return Final(row.task, row.state, row.token, row.attempts, row.error, "payload", "payload")
