"""Tells a history as a story: one call a step, times in seconds after noon.

Each step is legal by default. `odd` replaces fields of the row that a step leaves behind, and
`change`, `log` and `note` write whatever they are told: that is how a violation is planted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from chaos.history.events import (
    Change,
    Commit,
    Effect,
    Ended,
    Failover,
    Fault,
    Final,
    History,
    Key,
    Note,
    Occurrence,
    Phases,
    Policy,
    Row,
    Rules,
    Step,
)
from chaos.invariants.judge import INVARIANTS, judge
from chaos.invariants.verdict import Verdict

NOON = 1_767_268_800_000_000  # 2026-01-01 12:00:00 UTC

RULES = Rules(
    steps=frozenset(
        Step(*step)
        for step in (
            ("pending", "running", None),
            ("running", "running", None),
            ("running", "completed", "completed"),
            ("running", "pending", "failed"),
            ("running", "pending", "released"),
            ("running", "pending", "snoozed"),
            ("running", "pending", "reclaimed"),
            ("running", "dead", "failed"),
            ("running", "dead", "reclaimed"),
            ("running", "cancelled", "cancelled"),
            ("pending", "cancelled", None),
            ("dead", "pending", None),
            ("dead", "discarded", None),
        )
    ),
    gives_back=frozenset({"released", "snoozed"}),
    claim_limit=3,
)


def us(seconds: float) -> int:
    """Microseconds since the epoch of a time in seconds after noon."""
    return NOON + round(seconds * 1e6)


class Story:
    """A history being told. Every lease lasts five seconds unless a claim says otherwise."""

    def __init__(self) -> None:
        self.rows: dict[int, Row] = {}
        self.commits: list[Commit] = []
        self.notes: list[Note] = []
        self.faults: list[Fault] = []
        self.failovers: list[Failover] = []
        self.holders: dict[tuple[int, int], str] = {}  # (task, token) -> owner
        self.calls = 0

    # What clients, workers and operators do to rows.

    def enqueue(
        self,
        *tasks: int,
        at: float = 0,
        due: float | None = None,
        kind: str = "plain",
        max_attempts: int = 3,
        policy: Policy | None = None,
        **odd: Any,
    ) -> Story:
        for task in tasks:
            row = Row(
                task=task,
                kind=kind,
                state="pending",
                due=us(at if due is None else due),
                attempts=0,
                max_attempts=max_attempts,
                token=0,
                owner=None,
                expires=None,
                claimed_at=None,
                policy=policy,
                error=None,
            )
            self.commit(at, changes=[Change(task, row._replace(**odd))])
        return self

    def key(
        self, task: int, at: float = 0, key: str = "k", until: str = "finished", **odd: Any
    ) -> Story:
        """Enqueue a task under a key."""
        return self.enqueue(task, at=at, key=Key(key, until), **odd)

    def plan(self, task: int, at: float, due: float | None = None, name: str = "tick") -> Story:
        """Plan the occurrence of a schedule that is due at `due`: by default just now."""
        due = at if due is None else due
        return self.enqueue(task, at=at, due=due, occurrence=Occurrence(name, us(due)))

    def run(self, task: int, at: float, over: float) -> Story:
        """Claim a task and complete it."""
        return self.claim(task, at=at).complete(task, at=over)

    def claim(
        self,
        *tasks: int,
        by: str = "w1",
        at: float,
        lease: float = 5,
        owner: str | None = None,
        **odd: Any,
    ) -> Story:
        """One claim call, in one commit; its owner is `<worker>/<call>` unless given."""
        self.calls += 1
        owner = owner or f"{by}/{self.calls}"
        changes = []
        for task in tasks:
            row = self.rows[task]
            row = row._replace(
                state="running",
                attempts=row.attempts + 1,
                token=row.token + 1,
                owner=owner,
                claimed_at=us(at),
                expires=us(at + lease),
            )._replace(**odd)
            self.holders[task, row.token] = owner
            changes.append(Change(task, row))
        return self.commit(at, changes=changes)

    def renew(self, task: int, at: float, lease: float = 5, **odd: Any) -> Story:
        row = self.rows[task]
        self.change(task, at, expires=us(at + lease), **odd)
        return self.note("renewed", task, at, token=row.token, detail=str(us(at + lease)))

    def complete(
        self, task: int, at: float, token: int | None = None, effect: bool = False, **odd: Any
    ) -> Story:
        effects = [Effect(task, token or self.rows[task].token)] if effect else []
        return self.end(task, at, "completed", token=token, effects=effects, **odd)

    def fail(
        self, task: int, at: float, token: int | None = None, due: float | None = None, **odd: Any
    ) -> Story:
        """Fail an attempt; it is due again at `due`, or at once, or dead if that was the last."""
        row = self.rows[task]
        dead = row.attempts >= row.max_attempts
        after: dict[str, Any] = {
            "state": "dead" if dead else "pending",
            "due": us(at if due is None else due),
            "error": "boom",
        }
        return self.end(task, at, "failed", token=token, logged="boom", **after | odd)

    def release(self, task: int, at: float, token: int | None = None, **odd: Any) -> Story:
        fewer: dict[str, Any] = {"state": "pending", "attempts": self.rows[task].attempts - 1}
        return self.end(task, at, "released", token=token, **fewer | odd)

    def snooze(self, task: int, at: float, due: float, **odd: Any) -> Story:
        after: dict[str, Any] = {
            "state": "pending",
            "attempts": self.rows[task].attempts - 1,
            "due": us(due),
        }
        return self.end(task, at, "snoozed", **after | odd)

    def reclaim(self, task: int, at: float, cause: bool = True, **odd: Any) -> Story:
        """Take back a lease that ran out on a worker which was stalled, or did so without cause."""
        if cause:
            self.stall(task)
        row = self.rows[task]
        dead = row.attempts >= row.max_attempts
        after: dict[str, Any] = {"state": "dead" if dead else "pending", "error": "lease expired"}
        return self.end(task, at, "reclaimed", logged="lease expired", **after | odd)

    def cancel(self, task: int, at: float) -> Story:
        if self.rows[task].state == "running":
            return self.end(task, at, "cancelled", state="cancelled")
        return self.change(task, at, state="cancelled")

    def requeue(self, task: int, at: float, **odd: Any) -> Story:
        after: dict[str, Any] = {"state": "pending", "attempts": 0, "due": us(at)}
        return self.change(task, at, **after | odd)

    def discard(self, task: int, at: float) -> Story:
        return self.change(task, at, state="discarded")

    def prune(self, task: int, at: float) -> Story:
        return self.commit(at, changes=[Change(task, None)])

    # What those are made of.

    def end(
        self,
        task: int,
        at: float,
        outcome: str,
        token: int | None = None,
        effects: Iterable[Effect] = (),
        logged: str | None = None,
        **after: Any,
    ) -> Story:
        """End a lease and log it, as the holder of `token`: by default the one who has it.

        `logged` is the error in the log.
        """
        row = self.rows[task]
        ended = self.logged(task, at, outcome, token, logged)
        left: dict[str, Any] = {
            "state": outcome,
            "owner": None,
            "expires": None,
            "claimed_at": None,
        }
        row = row._replace(**left | after)
        return self.commit(at, changes=[Change(task, row)], ended=[ended], effects=effects)

    def logged(
        self, task: int, at: float, outcome: str, token: int | None = None, error: str | None = None
    ) -> Ended:
        row = self.rows[task]
        token = token or row.token
        owner = self.holders[task, token]
        return Ended(task, token, owner, row.attempts, row.claimed_at or 0, us(at), outcome, error)

    def log(self, task: int, at: float, outcome: str, token: int | None = None) -> Story:
        """A run-log row whose commit changes no task."""
        return self.commit(at, ended=[self.logged(task, at, outcome, token)])

    def effect(self, task: int, at: float, token: int | None = None) -> Story:
        """A transactional effect in a commit of its own."""
        return self.commit(at, effects=[Effect(task, token or self.rows[task].token)])

    def change(self, task: int, at: float, **odd: Any) -> Story:
        """Change a row and log nothing."""
        return self.commit(at, changes=[Change(task, self.rows[task]._replace(**odd))])

    def commit(
        self,
        at: float,
        changes: Iterable[Change] = (),
        ended: Iterable[Ended] = (),
        effects: Iterable[Effect] = (),
    ) -> Story:
        changes = tuple(changes)
        for task, row in changes:
            if row is None:
                self.rows.pop(task, None)
            else:
                self.rows[task] = row
        seq = len(self.commits) + sum(len(one.lost) for one in self.failovers) + 1
        self.commits.append(Commit(seq, us(at), 1000 + seq, changes, tuple(ended), tuple(effects)))
        return self

    # What workers, clients and the harness say.

    def note(
        self, what: str, task: int, at: float, token: int | None = None, detail: str = ""
    ) -> Story:
        """A note of the holder of `token`: by default of the latest lease."""
        token = token or self.rows[task].token
        owner = self.holders.get((task, token), "nobody")
        self.notes.append(Note(us(at), owner.partition("/")[0], what, task, token, owner, detail))
        return self

    def ran(self, task: int, start: float, finish: float, token: int | None = None) -> Story:
        self.note("started", task, start, token)
        return self.note("finished", task, finish, token, detail="ok")

    def acknowledged(self, *tasks: int, at: float, due: float | None = None) -> Story:
        """The client learned that its enqueue of tasks, ordered for `due`, is committed."""
        detail = "" if due is None else str(us(due))
        self.notes += [
            Note(us(at), "client", "acknowledged", task, 0, "", detail) for task in tasks
        ]
        return self

    def told(
        self, task: int, answer: str, sent: float, at: float, key: str = "k", who: str = "c1"
    ) -> Story:
        """A client that asked at `sent` for a task under a key got an answer at `at`."""
        detail = f"{answer} {us(sent)} {key}"
        self.notes.append(Note(us(at), who, "keyed", task, 0, "", detail))
        return self

    def fault(
        self,
        name: str,
        *actions: str,
        target: str = "w1",
        at: float = 1,
        detail: str = "",
        which: int = -1,
    ) -> Story:
        self.faults += [Fault(us(at), name, action, target, detail, which) for action in actions]
        return self

    def stall(self, task: int) -> Story:
        """Stall the worker that holds this task at the moment in which its lease runs out."""
        row = self.rows[task]
        worker = (row.owner or "nobody").partition("/")[0]
        at = row.expires or 0
        self.faults += [Fault(at, "stall", what, worker, "") for what in ("inject", "heal", "bite")]
        return self

    def fail_over(self, lost: int, at: float, synchronous: bool = False) -> Story:
        """The primary died, and a standby without its last `lost` commits takes clients at `at`."""
        kept = len(self.commits) - lost
        gone = tuple(self.commits[kept:])
        self.failovers.append(Failover(us(at - 1), us(at), synchronous, gone))
        before, self.commits, self.rows = self.commits[:kept], [], {}
        for commit in before:
            for task, row in commit.changes:
                if row is None:
                    self.rows.pop(task, None)
                else:
                    self.rows[task] = row
        self.commits = before
        self.fault("failover", "inject", target="server", at=at - 3)
        return self.fault("failover", "bite", "heal", target="server", at=at)

    # The end.

    def finals(self) -> dict[int, Final]:
        """What a SELECT would find now."""
        return {
            task: Final(task, row.state, row.token, row.attempts, row.error, "digest", "digest")
            for task, row in self.rows.items()
        }

    def history(
        self,
        *,
        healed: float = 20,
        ended: float = 40,
        reclaim_bound: float = 2,
        progress_bound: float = 15,
        lag: float = 0,
        finals: dict[int, Final] | None = None,
        named: Iterable[str] = (),
        unknown: int = 0,
        rules: Rules = RULES,
    ) -> History:
        found = self.finals() if finals is None else finals
        return History(
            about={},
            rules=rules,
            phases=Phases(
                began=us(0),
                healed=us(healed),
                ended=us(ended),
                reclaim_bound=round(reclaim_bound * 1e6),
                progress_bound=round(progress_bound * 1e6),
                lag=round(lag * 1e6),
            ),
            commits=tuple(self.commits),
            notes=tuple(self.notes),
            faults=tuple(self.faults),
            finals=tuple(found.values()),
            failovers=tuple(self.failovers),
            unknown=unknown,
            named=frozenset(named),
        )


def verdict_of(invariant: str, history: History) -> Verdict:
    """The verdict of one invariant, out of the judgement of all: none may trip over a history."""
    verdicts = {verdict.invariant: verdict for verdict in judge(history)}
    assert list(verdicts) == list(INVARIANTS)
    return verdicts[invariant]


def assert_passes(invariant: str, history: History, judged: int | None = None) -> Verdict:
    verdict = verdict_of(invariant, history)
    assert (verdict.outcome, verdict.failures) == ("pass", ()), verdict.sentence
    assert verdict.judged > 0
    assert judged is None or verdict.judged == judged
    assert verdict.evidence["failures"] == 0
    return verdict


def assert_fails(invariant: str, history: History, *parts: str, times: int = 1) -> Verdict:
    """It fails, and its first sentence holds all of these parts."""
    verdict = verdict_of(invariant, history)
    assert verdict.outcome == "fail", verdict.sentence
    assert verdict.sentence == verdict.failures[0].sentence
    for part in parts:
        assert part in verdict.sentence
    assert verdict.evidence["failures"] == times, [one.sentence for one in verdict.failures]
    return verdict


def assert_inconclusive(invariant: str, history: History, *parts: str) -> Verdict:
    verdict = verdict_of(invariant, history)
    assert verdict.outcome == "inconclusive", verdict.sentence
    assert verdict.failures == ()
    for part in parts:
        assert part in verdict.sentence
    return verdict


def failing(history: History) -> set[str]:
    """The names of all invariants that fail."""
    return {verdict.invariant for verdict in judge(history) if verdict.outcome == "fail"}
