"""`chaos bench targets RESULT...`: what the scheduler has to reach, beside what results say.

Each figure is a ratio of medians within one result, so that it does not move with the machine.
Where a result has several numbers of workers, ours is taken where it is fastest, and pgbench at the
same number; other queues, and our own best, each where that is fastest. Of several results of one
bench the newest that has the figure counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import ge, gt, le, lt
from statistics import mean
from typing import Literal, NamedTuple

from chaos.bench import growth, sustained
from chaos.bench.peers import said as peers
from chaos.bench.peers.peer import BEST
from chaos.bench.result import LIMIT, ONE_COMMIT, OURS, Key, Result, limit_of, spreads
from chaos.bench.setting import DEFAULT

HELD, NOT_HELD, MISSING = "held", "not held", "missing"
MILLION = 1_000_000
MOST_PENDING, LEAST_PENDING = 5 * MILLION, 10_000
MOST_WORKERS = 64
SUSTAINED_SECONDS = 60
NO_DECAY = 0.95  # of the first window's rate: two windows of one steady drain differ, too

_FUTURE = growth.beside(MILLION, growth.FUTURE)

COMMANDS = {
    "contention": "chaos bench contention",
    "transactional": "chaos bench transactional",
    "peers": "chaos bench peers",
    "latency": "chaos bench latency",
    "growth": "chaos bench growth --pending 10000,100000,1000000,5000000",
    "sustained": "chaos bench sustained",
    "enqueue": "chaos bench enqueue",
}

Must = Literal["at least", "more than", "at most", "less than"]
_COMPARES: Mapping[Must, Callable[[float, float], bool]] = {
    "at least": ge,
    "more than": gt,
    "at most": le,
    "less than": lt,
}


class Found(NamedTuple):
    """A figure, and the cell that it is of, for people."""

    value: float
    cell: str


class Lacking(NamedTuple):
    """What a result would need to have the figure."""

    what: str


class Target(NamedTuple):
    """A figure, as a multiple of what, and how large that must be. bench: whose results have it."""

    figure: str
    of: str
    bench: str
    must: Must
    bound: float
    find: Callable[[Result], Found | Lacking]

    def holds(self, value: float) -> bool:
        """Whether a value is as it must be."""
        return _COMPARES[self.must](value, self.bound)


class Row(NamedTuple):
    """A target, what was measured, and what that means, for people."""

    figure: str
    of: str
    must: str
    measured: str
    verdict: str


def rows(results: Sequence[Result]) -> list[Row]:
    """All targets beside what these results say."""
    return [_row(target, results) for target in TARGETS]


def missing(results: Sequence[Result]) -> Iterator[str]:
    """The commands whose results are missing, or lack a figure."""
    benches = [one.bench for one in TARGETS if _row(one, results).verdict == MISSING]
    for bench in dict.fromkeys(benches):
        yield COMMANDS[bench]


def _row(target: Target, results: Sequence[Result]) -> Row:
    measured, verdict = f"no result of {target.bench}", MISSING
    for result in sorted(results, key=lambda one: one.began, reverse=True):
        if result.bench != target.bench:
            continue
        found = target.find(result)
        if isinstance(found, Found):
            measured = f"{found.value:.2f} ({found.cell})"
            verdict = HELD if target.holds(found.value) else NOT_HELD
            break
        measured = found.what
    return Row(target.figure, target.of, f"{target.must} {target.bound:g}", measured, verdict)


def _beside_peers(names: Sequence[str]) -> Callable[[Result], Found | Lacking]:
    """Ours with default settings as a multiple of the fastest of these at its best."""

    def find(result: Result) -> Found | Lacking:
        medians = _medians(result, "tasks_per_s")
        if absent := [name for name in (OURS, *names) if name not in _systems(medians)]:
            return Lacking(f"it has no {', '.join(absent)}")
        ours = peers.greatest(medians, (OURS,), (DEFAULT,))
        theirs = peers.greatest(medians, tuple(names), (DEFAULT, BEST))
        if ours is None or theirs is None:
            return Lacking("it has no drain with default settings")
        return Found(medians[ours] / medians[theirs], f"{theirs.system} {theirs.setting}")

    return find


def _enqueued(name: str, figure: str) -> Callable[[Result], Found | Lacking]:
    """Our enqueue, in bulk or one by one, as a multiple of this system's."""

    def find(result: Result) -> Found | Lacking:
        medians = _medians(result, figure)
        if absent := [one for one in (OURS, name) if one not in _systems(medians)]:
            return Lacking(f"it has no {', '.join(absent)}")
        mine, theirs = (
            max(value for key, value in medians.items() if key.system == system)
            for system in (OURS, name)
        )
        return Found(mine / theirs, f"{mine:,.0f} to {theirs:,.0f} tasks/s")

    return find


def _started(name: str, figure: str) -> Callable[[Result], Found | Lacking]:
    """How soon a task of ours starts with default settings, as a multiple of this system's."""

    def find(result: Result) -> Found | Lacking:
        medians = _medians(result, figure)
        ours = [key for key in medians if (key.system, key.setting) == (OURS, DEFAULT)]
        theirs = [key for key in medians if key.system == name]
        if absent := [one for one, keys in ((OURS, ours), (name, theirs)) if not keys]:
            return Lacking(f"it has no {', '.join(absent)}")
        mine, best = (min(keys, key=medians.__getitem__) for keys in (ours, theirs))
        cell = f"{medians[mine]:.2f} ms to {medians[best]:.2f} ms ({best.setting})"
        return Found(medians[mine] / medians[best], cell)

    return find


def _of_pgbench(
    batch: int | None, at: int | None = None, limit: str = LIMIT
) -> Callable[[Result], Found | Lacking]:
    """Ours as a share of this limit, at this batch, or whichever is fastest."""

    def find(result: Result) -> Found | Lacking:
        medians = _medians(result, "tasks_per_s")
        ours = [
            key
            for key in medians
            if key.system == OURS
            and limit_of(key, limit) in medians
            and batch in (None, key.batch)
            and at in (None, key.at)
        ]
        if not ours:
            wanted = "" if batch is None else f" of batch {batch}"
            wanted += "" if at is None else f" at {at} {result.axis}"
            return Lacking(f"it has no {OURS} beside {limit}{wanted}")
        best = max(ours, key=medians.__getitem__)
        cell = f"{best.setting} at {best.at} {result.axis}"
        return Found(medians[best] / medians[limit_of(best, limit)], cell)

    return find


def _default_of_best(result: Result) -> Found | Lacking:
    medians = _medians(result, "tasks_per_s")
    ours = {key: value for key, value in medians.items() if key.system == OURS}
    defaults = {key: value for key, value in ours.items() if key.setting == DEFAULT}
    if not defaults or len({key.setting for key in ours}) < 2:
        return Lacking("it has no default settings beside others")
    best = max(ours, key=ours.__getitem__)
    return Found(max(defaults.values()) / ours[best], f"best is {best.setting} at {best.at}")


def _kept_at_most_workers(batch: int) -> Callable[[Result], Found | Lacking]:
    """What is left of our best at many workers, as a multiple of what is left of pgbench's."""

    def find(result: Result) -> Found | Lacking:
        medians = _medians(result, "tasks_per_s")
        kept = {}
        for system in (OURS, ONE_COMMIT):
            own: dict[int, float] = {}  # of several settings with this batch the fastest
            for key, value in medians.items():
                if (key.system, key.batch) == (system, batch):
                    own[key.at] = max(value, own.get(key.at, 0.0))
            if MOST_WORKERS not in own or len(own) < 2:
                return Lacking(f"it has no {system} with {batch} at {MOST_WORKERS} and fewer")
            kept[system] = own[MOST_WORKERS] / max(own.values())
        said = f"ours {kept[OURS]:.2f}, pgbench's {kept[ONE_COMMIT]:.2f}"
        return Found(kept[OURS] / kept[ONE_COMMIT], said)

    return find


def _claim_cost(setting: str, pending: int) -> Callable[[Result], Found | Lacking]:
    """A claim's median as a multiple of that with few due tasks and nothing else."""

    def find(result: Result) -> Found | Lacking:
        cells = _medians(result, "claim_p50").items()
        medians = {(key.setting, key.at): value for key, value in cells}
        few, many = (growth.DUE, LEAST_PENDING), (setting, pending)
        for cell in (few, many):
            if cell not in medians:
                return Lacking(f"it has no {cell[1]:,} {cell[0]}")
        return Found(medians[many] / medians[few], f"{medians[many]:.2f} ms")

    return find


def _decay(result: Result) -> Found | Lacking:
    rates = sustained.by_way(_medians(result, "tasks_per_s")).get(sustained.FREE, {})
    if max(rates, default=0) < SUSTAINED_SECONDS:
        return Lacking(f"it has no {SUSTAINED_SECONDS} s")
    first, last = rates[min(rates)], rates[max(rates)]
    return Found(last / first, f"{first:,.0f} tasks/s at first")


def _under_horizon(result: Result) -> Found | Lacking:
    rates = sustained.by_way(_medians(result, "tasks_per_s"))
    way = sustained.dead_before(MILLION)
    if not {way, sustained.FREE} <= rates.keys() or max(rates[way]) < SUSTAINED_SECONDS:
        return Lacking(f"it has no {way} of {SUSTAINED_SECONDS} s")
    own = mean(rates[way].values())
    return Found(own / mean(rates[sustained.FREE].values()), f"{own:,.0f} tasks/s")


def _medians(result: Result, figure: str) -> dict[Key, float]:
    return {key: found.median for key, found in spreads(result, figure).items()}


def _systems(medians: Mapping[Key, float]) -> set[str]:
    return {key.system for key in medians}


TARGETS = (
    Target(
        "drain, default settings",
        "the best of Python's others",
        *("peers", "at least", 2.0, _beside_peers(peers.PYTHON)),
    ),
    *(
        Target("drain, default settings", name, "peers", "more than", 1.0, _beside_peers([name]))
        for name in peers.OTHERS
    ),
    # A worker's cycle is one statement and commit: these are shares of pgbench with that statement.
    # The plain cycle, claim and then complete, has two, so beside it the saved commit must show.
    Target(
        "drain, batch 100",
        ONE_COMMIT,
        *("contention", "at least", 0.5, _of_pgbench(100, limit=ONE_COMMIT)),
    ),
    Target(
        "drain, one task a claim",
        ONE_COMMIT,
        *("contention", "at least", 0.65, _of_pgbench(1, limit=ONE_COMMIT)),
    ),
    Target(
        "drain, one task a claim and commit",
        "pgbench's claim, then complete",
        *("contention", "at least", 1.3, _of_pgbench(1)),
    ),
    Target("drain, default settings", "our best", "contention", "at least", 0.9, _default_of_best),
    Target("transactional tasks", LIMIT, "transactional", "at least", 0.65, _of_pgbench(None)),
    *(
        Target(
            f"kept at {MOST_WORKERS} workers, batch {batch:,}",
            f"what {ONE_COMMIT} keeps",
            *("contention", "more than", 1.0, _kept_at_most_workers(batch)),
        )
        for batch in (100, 1_000)
    ),
    Target(
        f"claim with {MOST_PENDING:,} pending",
        f"with {LEAST_PENDING:,}",
        *("growth", "at most", 1.2, _claim_cost(growth.DUE, MOST_PENDING)),
    ),
    Target(
        f"claim beside {MILLION:,} future tasks",
        "beside none",
        *("growth", "at most", 1.2, _claim_cost(_FUTURE, LEAST_PENDING)),
    ),
    Target(
        f"last window of {SUSTAINED_SECONDS} s",
        "the first",
        "sustained",
        "at least",
        NO_DECAY,
        _decay,
    ),
    Target(
        f"drain after {MILLION:,} dead rows that stay",
        "without them",
        *("sustained", "at least", 0.5, _under_horizon),
    ),
    *(
        Target("bulk enqueue", name, "peers", "more than", 1.0, _enqueued(name, "enqueued_per_s"))
        for name in ("graphile-worker", "pgqueuer")
    ),
    *(
        Target(f"single enqueue, {clients}", LIMIT, "enqueue", "at least", 0.8, _of_pgbench(1, at))
        for clients, at in (("1 client", 1), ("8 clients", 8))
    ),
    Target(
        "single enqueue",
        "absurd",
        *("peers", "more than", 1.0, _enqueued("absurd", "single_enqueues_per_s")),
    ),
    *(
        Target(
            f"enqueue to start, p{percent}",
            "graphile-worker",
            *("latency", "less than", 1.0, _started("graphile-worker", f"start_p{percent}")),
        )
        for percent in (50, 99)
    ),
)
