"""What a bench found: one versioned JSON document, and the summary of its repeats."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from chaos.bench.statistics import Spread, spread

FORMAT, VERSION = "leaseproof-bench", 1
# The systems of most results. pgbench claims and then completes, or does both as a worker does.
OURS, LIMIT, ONE_COMMIT = "leaseproof", "pgbench", "pgbench-one-commit"
LIMITS = (LIMIT, ONE_COMMIT)


class Figure(NamedTuple):
    """A figure's name in documents, its unit for people, and which direction is better."""

    name: str
    unit: str
    better: Literal["more", "less", ""]


FIGURES = {
    figure.name: figure
    for figure in (
        Figure("tasks_per_s", "tasks/s", "more"),
        Figure("claims_per_s", "claims/s", ""),
        Figure("claim_p50", "ms", "less"),
        Figure("claim_p99", "ms", "less"),
        Figure("claims", "", ""),
        Figure("empty_claims", "", "less"),
        Figure("start_p50", "ms", "less"),
        Figure("start_p99", "ms", "less"),
        Figure("declare_first", "ms", "less"),
        Figure("declare_again", "ms", "less"),
        Figure("plan_all", "ms", "less"),
        Figure("look_idle", "ms", "less"),
        Figure("look_blocked", "ms", "less"),
        Figure("claiming_all", "s", "less"),
        Figure("claiming_first", "s", "less"),
        Figure("enqueued_per_s", "tasks/s", ""),
        Figure("single_enqueues_per_s", "tasks/s", ""),
        Figure("seconds", "s", ""),
        Figure("tasks", "", ""),
        Figure("worker_cpu", "s", "less"),
        Figure("server_cpu", "s", "less"),
        Figure("dead_tuples", "rows", "less"),
        Figure("updates", "rows", ""),
        Figure("hot_updates", "rows", ""),
        Figure("vacuums", "runs", ""),
        Figure("wal_per_task", "bytes", "less"),
    )
}


class Key(NamedTuple):
    """What was measured: everything that repeats have in common."""

    system: str
    setting: str
    batch: int
    at: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repeat of one cell.

    at: where on the result's axis. figures: by name, of FIGURES. waits: the share of looks at an
    active session in which it waited for this event (`CPU`: for none).
    """

    key: Key
    repeat: int
    figures: Mapping[str, float]
    waits: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Result:
    """A whole run of a bench. axis: what `at` counts. notes: what a reader must know."""

    bench: str
    axis: str
    command: str
    began: str
    seconds: float
    machine: Mapping[str, str | float]
    notes: tuple[str, ...]
    measurements: tuple[Measurement, ...]


class ResultError(Exception):
    """A file that is no result, or one of another version."""


def save(result: Result, path: Path) -> None:
    """Write the document."""
    path.write_text(as_json(result) + "\n")


def as_json(result: Result) -> str:
    """The document."""
    body = asdict(result)
    for measurement, key in zip(body["measurements"], result.measurements, strict=True):
        measurement["key"] = key.key._asdict()
    return json.dumps({"format": FORMAT, "version": VERSION, **body}, indent=1)


def load(path: Path) -> Result:
    """Read a document. Raises ResultError, which says what is wrong with it."""
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ResultError(f"{path} cannot be read as a result: {error}") from error
    if not isinstance(body, dict) or body.pop("format", None) != FORMAT:
        raise ResultError(f"{path} is no result of `chaos bench`")
    if (version := body.pop("version", None)) != VERSION:
        raise ResultError(f"{path} has version {version}, and this program reads {VERSION}")
    try:
        measurements = tuple(
            Measurement(Key(**one.pop("key")), **one) for one in body.pop("measurements")
        )
        notes = tuple(body.pop("notes"))
        return Result(**body, notes=notes, measurements=measurements)
    except (TypeError, KeyError, AttributeError) as error:
        raise ResultError(f"{path} is incomplete: {error}") from error


def repeats(result: Result, figure: str) -> dict[Key, list[float]]:
    """The values of a figure by cell, in the order of the cells; without those that lack it."""
    values: defaultdict[Key, list[float]] = defaultdict(list)
    for one in result.measurements:
        if figure in one.figures:
            values[one.key].append(one.figures[figure])
    return dict(values)


def headline(result: Result) -> str:
    """The figure that the bench is about: the first of FIGURES that every measurement has."""
    common = set(FIGURES)
    for one in result.measurements:
        common &= one.figures.keys()
    return next(name for name, figure in FIGURES.items() if name in common and figure.better)


def limit_of(key: Key, limit: str = LIMIT) -> Key:
    """The cell of pgbench that is the limit of this one; of which, where there are two."""
    return Key(limit, str(key.batch), key.batch, key.at)


def spreads(result: Result, figure: str) -> dict[Key, Spread]:
    """Median, least and greatest of a figure by cell."""
    return {key: spread(values) for key, values in repeats(result, figure).items()}


def waits(result: Result) -> dict[Key, dict[str, float]]:
    """The mean share of each wait event by cell, greatest first."""
    shares: defaultdict[Key, list[Mapping[str, float]]] = defaultdict(list)
    for one in result.measurements:
        if one.waits:
            shares[one.key].append(one.waits)
    means = {}
    for key, looks in shares.items():
        events = {event for look in looks for event in look}
        mean = {event: sum(look.get(event, 0.0) for look in looks) / len(looks) for event in events}
        means[key] = dict(sorted(mean.items(), key=lambda item: -item[1]))
    return means
