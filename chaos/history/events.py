"""What a history is made of: plain, immutable records with no clock and no I/O.

Two witnesses speak. The write-ahead log says what was committed (`Commit`, in commit order);
workers and clients say what they did and believed (`Note`). All times are microseconds since the
Unix epoch.

Times inside `Row`, `Ended` and `Effect` come from the system's own database clock; `Commit.at` is
the server's commit timestamp and `Note.at` the machine's clock. Ordering between commits is
`Commit.seq`, never a timestamp.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

# The words of DESIGN for a task's states, whatever a peer calls them.
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


class Row(NamedTuple):
    """A task as one committed change left it."""

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
    - `claimed`: a claim's reply arrived;
    - `started`, `finished`: the handler was entered and left (`detail`: how it ended);
    - `effect`: an effect outside the database happened;
    - `renewed`: a renewal's reply arrived; `detail` is the expiry it set, in microseconds;
    - `lease-lost`: the worker learned or concluded that its lease is gone (`detail`: how);
    - `refused`: a write of this holder was refused by the fence (`detail`: which write);
    - `reclaimed`: this worker took back the expired lease of another (whose token and owner these
      are; `detail`: what became of the task);
    - `acknowledged`: the client's enqueue of this task was acknowledged (no token, no owner).
    """

    at: int
    worker: str
    what: str
    task: int
    token: int
    owner: str
    detail: str


class Fault(NamedTuple):
    """Something the harness did. `action` is `inject`, `heal` or `bite`."""

    at: int
    name: str
    action: str
    target: str
    detail: str


class Final(NamedTuple):
    """A task as a plain SELECT found it at the end, with digests of the payload it had and has."""

    task: int
    state: str
    token: int
    attempts: int
    error: str | None
    payload_enqueued: str
    payload_now: str


@dataclass(frozen=True, slots=True)
class Step:
    """A legal change of state. `outcome` is the run-log outcome that goes with it, if any."""

    before: str
    after: str
    outcome: str | None


@dataclass(frozen=True, slots=True)
class Rules:
    """What the system under test promises, in its adapter's words."""

    steps: frozenset[Step]
    gives_back: frozenset[str]  # outcomes that lower `attempts` by one
    claim_limit: int  # rows that one claim may take: no two claims share an owner


@dataclass(frozen=True, slots=True)
class Phases:
    """When the run's phases began and how far the machine lagged behind its own timers."""

    began: int
    healed: int
    ended: int
    reclaim_bound: int  # microseconds from the later of expiry and heal to the reclaim's commit
    progress_bound: int  # microseconds from heal until everything due is done
    lag: int  # the largest scheduling lag measured during the run, in microseconds


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
    unknown: int = 0  # outcomes that could not be resolved after the run
    named: frozenset[str] = field(default_factory=frozenset)  # the invariants the scenario is about
