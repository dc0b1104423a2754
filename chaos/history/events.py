"""What a history is made of: plain, immutable records with no clock and no I/O.

Two witnesses speak. The write-ahead log says what was committed (`Commit`, in commit order);
workers and clients say what they did and believed (`Note`). All times are microseconds since the
Unix epoch.

Times inside `Row`, `Ended` and `Effect` come from the system's own database clock; `Commit.at` is
the server's commit timestamp and `Note.at` the machine's clock. Ordering between commits is
`Commit.seq`, never a timestamp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

# Our words for a task's states, whatever another queue calls them.
PENDING = "pending"
RUNNING = "running"
COMPLETED = "completed"
DEAD = "dead"
CANCELLED = "cancelled"
DISCARDED = "discarded"
STATES = frozenset({PENDING, RUNNING, COMPLETED, DEAD, CANCELLED, DISCARDED})
FINAL = frozenset({COMPLETED, CANCELLED, DISCARDED})


class Policy(NamedTuple):
    """A task's stored backoff: base and cap in seconds, jitter the share of a delay it may cut."""

    base: float
    factor: float
    cap: float
    jitter: float


class Key(NamedTuple):
    """The unique key of a task, and for how long the task has it.

    `until` is `started` (claimed for the first time), `finished` (over or dead), or `period`: the
    text says which period, and the task has it for as long as its row exists.
    """

    text: str
    until: str


class Occurrence(NamedTuple):
    """Which due time of which schedule a task is."""

    schedule: str
    at: int


class Row(NamedTuple):
    """A task as one committed change left it.

    `source` is who enqueued it, if the system knows; `counted`, whether it takes up room under that
    source's cap. `key` and `occurrence` are None for most tasks. Of those due, the ones of higher
    `priority` are claimed first, and of those the ones due earlier.
    """

    task: int
    kind: str
    state: str
    due: int
    attempts: int
    max_attempts: int
    token: int
    owner: str | None
    expires: int | None
    claimed_at: int | None
    policy: Policy | None
    error: str | None
    source: str | None = None
    counted: bool = False
    key: Key | None = None
    occurrence: Occurrence | None = None
    priority: int = 0


def worker_of(owner: str) -> str:
    """The name of the worker in a lease's owner: it stands before the first slash. What follows is
    the system's own affair, and may have slashes too."""
    return owner.partition("/")[0]


class Change(NamedTuple):
    """One row change. `row` is None when the row was deleted."""

    task: int
    row: Row | None


class Ended(NamedTuple):
    """A run-log row: the end of one attempt, with the token of whoever ended it.

    `outcome` is one of `completed`, `failed`, `released`, `snoozed`, `cancelled`, `reclaimed`.
    """

    task: int
    token: int
    owner: str
    attempt: int
    claimed_at: int
    finished_at: int
    outcome: str
    error: str | None


class Effect(NamedTuple):
    """A row that a transactional handler wrote through its task's own transaction."""

    task: int
    token: int


class Commit(NamedTuple):
    """One committed transaction that touched the system's tables, in commit order."""

    seq: int
    at: int
    xid: int
    changes: tuple[Change, ...]
    ended: tuple[Ended, ...]
    effects: tuple[Effect, ...]


class Note(NamedTuple):
    """What a worker or client said of itself.

    `what` is one of
    - `claimed`: a claim's reply arrived; `detail` is what the worker's own wall clock read then;
    - `started`, `finished`: the handler was entered and left (`detail`: how it ended);
    - `effect`: an effect outside the database happened;
    - `renewed`: a renewal's reply arrived; `detail` is the expiry it set, in microseconds;
    - `lease-lost`: the worker learned or concluded that its lease is gone (`detail`: how);
    - `settled`: this holder was told that the end of its attempt is written (`detail`: which, as in
      `Ended.outcome`);
    - `refused`: a write of this holder was refused by the fence (`detail`: which write);
    - `reclaimed`: this worker took back the expired lease of another (whose token and owner these
      are; `detail`: what became of the task);
    - `acknowledged`: the client knows that its enqueue of this task is committed, from the reply or
      by asking later (no token, no owner); `detail` is the earliest due time that it ordered, in
      microseconds, or empty if that is not known;
    - `reply-lost`: this worker sent a statement whose reply was kept from it (no task, no token);
      `detail` is for how many microseconds it waited;
    - `in-renewal`, `in-reclaim`: this worker was asked to wait where leases are renewed, or taken
      back, and it has not heard of it yet; now it is there (no task, no token);
    - `starved`: this worker's process was ready to run and was given no processor; `detail` is for
      how many microseconds since its last such note, or since it started (no task, no token). Of
      the harness itself, under the name RUNNER: it came so much later than it wanted to;
    - `keyed`: the client asked for a task under a unique key and was told that this one stands (no
      token, no owner); `detail` is `created` or `standing`, the time in microseconds at which it
      asked, and the key, with a space between.
    """

    at: int
    worker: str
    what: str
    task: int
    token: int
    owner: str
    detail: str


STARVED = "starved"  # what the harness notes of a worker; the worker itself says nothing by it
RUNNER = "runner"
# Targets of a fault that is everybody's.
SERVER_WIDE = frozenset({"", "database", "server"})


class Fault(NamedTuple):
    """Something the harness did, or saw happen to a process.

    `action` is one of
    - `plan`: the scenario wants this fault (no target); `detail` is how many times;
    - `inject`, `heal`: it was put in place, and taken away; without a heal, a fault of a worker
      lasts for as long as the process and a fault of the server is over at once;
    - `bite`: it had its intended effect (`detail`: which);
    - `death` (the name, too, is `death`): a worker process ended that the harness did not end;
      `detail` is its exit code, negative for a signal, or says in words how it ended otherwise.

    `target` is the worker process, or several with spaces between; one of `SERVER_WIDE`; or, for a
    fault that tasks are, which ones (`12 tasks`): its name is then the kind of those tasks.
    `which` tells which of the scenario's faults it is, counted from 0: two may have one name. -1 is
    none of them.
    """

    at: int
    name: str
    action: str
    target: str
    detail: str
    which: int = -1


class Final(NamedTuple):
    """A task as a plain SELECT found it at the end, with digests of the payload it had and has.

    The digest of the payload it had is empty if the client never learned that this task is its own,
    or if no client enqueued it.
    """

    task: int
    state: str
    token: int
    attempts: int
    error: str | None
    payload_enqueued: str
    payload_now: str


class Failover(NamedTuple):
    """The primary died, and its standby took over.

    died: when the primary was no more. opened: from when clients were let in to the promoted
    server: whatever was committed there came later. synchronous: whether the primary told nobody
    of a commit that the standby did not have. lost: what the primary had committed and the standby
    did not have, in commit order.

    What was lost is no part of `History.commits`, which is the surviving timeline: it happened, and
    then it had not. Its `seq` comes after those of the commits that were kept and before those of
    the promoted server, so that all commits of a run have one order.
    """

    died: int
    opened: int
    synchronous: bool
    lost: tuple[Commit, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A legal change of state. `outcome` is the run-log outcome that goes with it, if any."""

    before: str
    after: str
    outcome: str | None


class Recurrence(NamedTuple):
    """A schedule: a run at each multiple of `every` microseconds since the Unix epoch.

    `missed` says what becomes of those that nobody could start in time: `all` are made up for,
    oldest first; of the others only the latest due one is run, with `once` however late it is, with
    `skip` if it is no more than a minute late.
    """

    every: int
    missed: str


@dataclass(frozen=True, slots=True)
class Rules:
    """What the system under test promises, in its adapter's words."""

    steps: frozenset[Step]
    gives_back: frozenset[str]  # outcomes that lower `attempts` by one
    claim_limit: int  # rows that one claim may take: no two claims share an owner
    snooze_delay: int | None = None  # microseconds that each snooze asks for, if all ask the same
    limits: Mapping[str, int] = field(default_factory=dict)  # kind -> its most leases at once
    caps: Mapping[str, int] = field(default_factory=dict)  # source -> its most tasks outstanding
    schedules: Mapping[str, Recurrence] = field(default_factory=dict)  # by name
    # For how many microseconds later tasks of the same kind and priority may be claimed before a
    # due one; None if no order is promised.
    passed_over: int | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """When the run's phases began and how far the machine lagged behind its own timers."""

    began: int
    healed: int
    ended: int
    reclaim_bound: int  # microseconds from the later of expiry and heal to the reclaim's commit
    progress_bound: int  # microseconds from heal until everything due is done
    lag: int  # the largest scheduling lag measured during the run, in microseconds

    # A bound is the system's; what the machine adds to it is not the system's fault. A machine that
    # lags by more than the bound itself measures nothing but itself.

    @property
    def allowed_reclaim(self) -> int:
        """`reclaim_bound` with the machine's lag on top."""
        return self.reclaim_bound + self.lag

    @property
    def allowed_progress(self) -> int:
        """`progress_bound` with the machine's lag on top."""
        return self.progress_bound + self.lag

    @property
    def starved_reclaim(self) -> bool:
        """Whether a breach of `reclaim_bound` proves nothing."""
        return self.lag > self.reclaim_bound

    @property
    def starved_progress(self) -> bool:
        """Whether a breach of `progress_bound` proves nothing."""
        return self.lag > self.progress_bound


@dataclass(frozen=True, slots=True)
class History:
    """Everything that happened in one run."""

    about: dict[str, object]  # scenario, seed, system, versions: for people and for replay
    rules: Rules
    phases: Phases
    commits: tuple[Commit, ...]
    notes: tuple[Note, ...] = ()
    faults: tuple[Fault, ...] = ()
    finals: tuple[Final, ...] = ()
    failovers: tuple[Failover, ...] = ()
    unknown: int = 0  # outcomes that could not be resolved after the run
    named: frozenset[str] = field(default_factory=frozenset)  # the invariants the scenario is about
