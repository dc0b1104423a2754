"""What operators do by hand while the queue is at work: they cancel, requeue and discard tasks."""

from __future__ import annotations

from typing import ClassVar, Literal

from chaos.faults.fault import Arena, Fault, Injection, Strike
from chaos.history.events import CANCELLED, DEAD, PENDING, RUNNING, History
from chaos.systems import Operation

OPERATOR = "operator"  # the target: it is no worker, and explains nothing of what befalls one


class OperatorFault(Fault):
    """Something that is done by hand to a task, drawn at random from those in the right state.

    It bit if the system says that it did it.
    """

    lasts: Literal[0] = 0
    does: ClassVar[Operation]

    def state(self) -> str:
        """The state of the tasks to do it to."""
        return DEAD

    def inject(self, arena: Arena) -> Strike | None:
        """Do it to one task. Sees whether it was done: the task may have moved on meanwhile."""
        tasks = arena.system.tasks(arena.dsn, self.state())
        if arena.wanted:
            tasks = [task for task in tasks if task in arena.wanted]
        if not tasks:
            return None
        done = arena.system.operate(arena.dsn, self.does, [arena.draw.choice(tasks)])
        return Strike(OPERATOR, OPERATOR, lambda: len(done))

    def bite(self, injection: Injection, history: History) -> str | None:
        """It was done."""
        return f"a {self.state()} task: {self.does}" if injection.seen else None


class Cancel(OperatorFault):
    """Cancel a task that waits, or one that runs."""

    kind: Literal["cancel"]
    does = "cancel"
    running: bool = True

    def state(self) -> str:
        """As the scenario wants it."""
        return RUNNING if self.running else PENDING

    def bite(self, injection: Injection, history: History) -> str | None:
        """It was done, and to a task that was in that state then."""
        states: dict[int, str] = {}
        for commit in history.commits:
            for task, row in commit.changes:
                before = states.get(task)
                states[task] = "" if row is None else row.state
                if injection.began <= commit.at <= injection.placed and (before, states[task]) == (
                    self.state(),
                    CANCELLED,
                ):
                    return super().bite(injection, history)
        return None


class Requeue(OperatorFault):
    """Put a dead letter back to work."""

    kind: Literal["requeue"]
    does = "requeue"


class Discard(OperatorFault):
    """Give a dead letter up."""

    kind: Literal["discard"]
    does = "discard"
