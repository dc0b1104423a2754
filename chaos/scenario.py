"""Scenario files: what runs, what is broken, what must hold. Validated, with errors that say where.

A scenario is data; the same file and seed give the same tasks, the same fault plan and the same
order. What the processes then do with it is theirs.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chaos.faults import AnyFault
from chaos.faults.operator import OperatorFault
from chaos.faults.tasks import faults_of
from chaos.invariants.judge import INVARIANTS
from chaos.load import AT_ONCE
from chaos.plan import Planned
from chaos.systems import (
    Feature,
    Missed,
    NotOfferedError,
    Order,
    System,
    Timetable,
    Until,
    WorkerSettings,
    system,
)
from chaos.workload import HOSTILE, Behaviour, Job


class ScenarioError(Exception):
    """A scenario file that cannot be used; the message names file, line and field."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Old(_Strict):
    """Workers that run the code of yesterday: how many, and which kinds it lacks.

    The processes that follow them run the code of today.
    """

    count: int = Field(ge=1, le=200)
    lacks: tuple[Behaviour, ...] = Field(min_length=1)


class Workers(_Strict):
    """The fleet: how many processes, and how each is set up. Times in seconds."""

    count: int = Field(ge=1, le=200)
    slots: int = Field(default=4, ge=1, le=100)
    prefetch: Annotated[int, Field(ge=0, le=1000)] | Literal["paced"] = 0
    lease: float = Field(default=2.0, ge=0.5, le=3600)
    poll: float = Field(default=0.1, ge=0.01, le=60)
    reclaim_every: float = Field(default=0.5, ge=0.05, le=60)
    grace: float = Field(default=5.0, ge=0, le=600)
    old: Old | None = None

    @model_validator(mode="after")
    def _some_are_new(self) -> Workers:
        if self.old is not None and self.old.count >= self.count:
            raise ValueError("some workers must be new: all are old, and lack what they lack")
        return self

    def settings(self) -> WorkerSettings:
        """What each worker process is told."""
        prefetch = None if self.prefetch == "paced" else self.prefetch
        return WorkerSettings(
            self.slots, prefetch, self.lease, self.poll, self.reclaim_every, self.grace
        )


NAME = r"^[a-z0-9][a-z0-9-]{0,60}$"
SOURCE = r"^[a-z][a-z0-9_]{0,30}$"  # as roles are named
IN_A_ROW = 4  # orders of a group that want the same key one after the other
ROLLS_BACK = 10  # each so manieth order under a key is rolled back first


class Tasks(_Strict):
    """A group of like tasks. `delay` is how long after its enqueue each is due, in seconds.

    With `keys` each is enqueued under one of so many unique keys, which a task keeps `until` it is
    started, finished, or a period of so many seconds is over: so fewer tasks come of it than
    orders. With `source` they are enqueued as that source. `priority` is from 0, which can wait, to
    3.
    """

    behaviour: Behaviour
    count: int = Field(ge=1, le=1_000_000)
    seconds: float = Field(default=0.0, ge=0, le=3600)
    failures: int = Field(default=0, ge=0, le=1000)
    delay: float = Field(default=0.0, ge=0, le=3600)
    max_attempts: int = Field(default=20, ge=1, le=1000)
    keys: int | None = Field(default=None, ge=1, le=10_000)
    until: Until = "finished"
    source: str | None = Field(default=None, pattern=SOURCE)
    priority: int = Field(default=1, ge=0, le=3)

    @field_validator("until")
    @classmethod
    def _long_enough(cls, until: Until) -> Until:
        if not isinstance(until, str) and not 1 <= until <= 3600:
            raise ValueError("a key's period must be from 1 to 3600 seconds")
        return until

    @model_validator(mode="after")
    def _of_a_key(self) -> Tasks:
        if self.keys is None and "until" in self.model_fields_set:
            raise ValueError("`until` is how long a task has a key: say how many `keys` there are")
        return self

    def order(self, number: int) -> Order:
        """One task of the group, with its number in the run."""
        text = HOSTILE * 100 if self.behaviour == "hostile" else ""
        job = Job(number, self.behaviour, self.seconds, self.failures, text)
        order = Order(
            job, self.delay, self.max_attempts, source=self.source, priority=self.priority
        )
        if self.keys is None:
            return order
        # In a row, so that several clients want the same one at once.
        key = f"{self.behaviour}-{number // IN_A_ROW % self.keys}"
        rolls_back = number % ROLLS_BACK == 0
        return replace(order, key=key, until=self.until, rolls_back=rolls_back)


class Schedule(_Strict):
    """What recurs: a task that works for `seconds`, each `every` seconds."""

    behaviour: Behaviour
    seconds: float = Field(default=0.0, ge=0, le=3600)
    every: int = Field(ge=1, le=86_400)
    missed: Missed


class Bounds(_Strict):
    """How long recovery may take, in seconds, besides what the machine itself lagged."""

    reclaim: float = Field(gt=0, le=3600)
    progress: float = Field(gt=0, le=3600)


class Scenario(_Strict):
    """One scenario file.

    failure_modes: those it stands for, as numbered in docs/how-queues-break.md; a scenario
    for another queue may have none. short: the share of its length at which it still shows what it
    is about. limits: how many tasks of a kind, which is a behaviour, may run at once. caps: how
    many tasks a source may have outstanding. schedules: what recurs, by name. standby: what sort of
    standby the database has, if any. clients: how many enqueue at once what has a key or a source;
    all else is enqueued by one more, in batches.
    """

    name: str = Field(pattern=NAME)
    about: str = Field(min_length=1)
    failure_modes: tuple[Annotated[int, Field(ge=1)], ...] = ()
    seed: int = Field(default=1, ge=0)
    short: float = Field(default=1.0, gt=0, le=1)
    load_seconds: float = Field(gt=0, le=86_400)
    workers: Workers
    tasks: tuple[Tasks, ...] = Field(min_length=1)
    faults: tuple[AnyFault, ...] = ()
    limits: dict[Behaviour, Annotated[int, Field(ge=1, le=1_000_000)]] = Field(default_factory=dict)
    caps: dict[str, Annotated[int, Field(ge=AT_ONCE, le=1_000_000)]] = Field(default_factory=dict)
    schedules: dict[Annotated[str, Field(pattern=NAME)], Schedule] = Field(default_factory=dict)
    standby: Literal["synchronous", "asynchronous"] | None = None
    clients: int = Field(default=4, ge=1, le=50)
    invariants: frozenset[str] = Field(min_length=1)
    bounds: Bounds

    @field_validator("invariants")
    @classmethod
    def _known(cls, names: frozenset[str]) -> frozenset[str]:
        if unknown := sorted(names - INVARIANTS.keys()):
            raise ValueError(f"unknown: {', '.join(unknown)}; known: {', '.join(INVARIANTS)}")
        return names

    @model_validator(mode="after")
    def _long_enough(self) -> Scenario:
        for fault in self.faults:
            if fault.outlasts_lease and fault.lasts <= self.workers.lease:
                raise ValueError(
                    f"a {fault.kind} that lasts {fault.lasts} s cannot outlast a lease of"
                    f" {self.workers.lease} s, so it could never bite"
                )
        return self

    @model_validator(mode="after")
    def _can_fail_over(self) -> Scenario:
        failovers = [fault.kind for fault in self.faults if fault.needs_standby]
        if not failovers:
            return self
        if self.standby is None:
            raise ValueError(
                f"a {failovers[0]} needs a standby: say `standby: synchronous` or `asynchronous`"
            )
        if len(failovers) > 1:
            raise ValueError("there is one standby, so a run can have one failover: leave one out")
        if proxied := sorted({fault.kind for fault in self.faults if fault.needs_proxy}):
            raise ValueError(
                f"a worker behind a proxy cannot find the standby: leave {', '.join(proxied)} or"
                f" the {failovers[0]} out"
            )
        return self

    @model_validator(mode="after")
    def _restricted(self) -> Scenario:
        behaviours = {group.behaviour for group in self.tasks}
        behaviours |= {schedule.behaviour for schedule in self.schedules.values()}
        if idle := sorted(self.limits.keys() - behaviours):
            raise ValueError(f"there is a limit and no task of {', '.join(idle)}")
        sources = {group.source for group in self.tasks} - {None}
        if sources != self.caps.keys():
            differ = ", ".join(sorted(name for name in sources ^ self.caps.keys() if name))
            raise ValueError(f"each source of tasks has a cap and no other has: {differ}")
        return self

    def settings(self) -> WorkerSettings:
        """What each worker process is told."""
        return replace(
            self.workers.settings(),
            limits={str(kind): most for kind, most in self.limits.items()},
            schedules={
                name: Timetable(one.behaviour, one.seconds, one.every, one.missed)
                for name, one in self.schedules.items()
            },
        )

    @property
    def asks(self) -> frozenset[str]:
        """What it takes of a system, in the words of `System.offers`."""
        features: dict[Feature, bool] = {
            "keys": any(group.keys is not None for group in self.tasks),
            "sources": bool(self.caps),
            "priorities": len({group.priority for group in self.tasks}) > 1,
            "limits": bool(self.limits),
            "schedules": bool(self.schedules),
            "operators": any(isinstance(fault, OperatorFault) for fault in self.faults),
            "lacks": self.workers.old is not None,
            "paced": self.workers.prefetch == "paced",
        }
        behaviours = {group.behaviour for group in self.tasks}
        behaviours |= {schedule.behaviour for schedule in self.schedules.values()}
        return frozenset([*behaviours, *(name for name, asked in features.items() if asked)])

    def system(self, name: str) -> System:
        """The system of this name. Raises UnknownSystemError, and NotOfferedError if it does not
        offer all that the scenario asks for.
        """
        found = system(name)
        if missing := self.asks - found.offers:
            raise NotOfferedError(
                f"{self.name} asks for {', '.join(sorted(missing))}, which {name} does not offer:"
                " take another scenario"
            )
        return found

    @property
    def must_bite(self) -> list[str]:
        """The names of all faults: those that are injected and those that tasks are themselves."""
        tasks = (
            fault.name
            for group in self.tasks
            for fault in faults_of(group.order(0).job, self.workers.lease)
        )
        return list(dict.fromkeys([*(fault.kind for fault in self.faults), *tasks]))

    @property
    def total(self) -> int:
        """How many tasks the scenario enqueues."""
        return sum(group.count for group in self.tasks)

    def in_short(self) -> Scenario:
        """The shortest form that still shows what the scenario is about."""
        return self.scaled(self.short)

    def scaled(self, share: float) -> Scenario:
        """The same scenario with this share of its tasks, faults and load time; at least one each.

        What a fault, a lease or a bound is about does not scale.
        """
        return self.model_copy(
            update={
                "load_seconds": self.load_seconds * share,
                "tasks": tuple(
                    group.model_copy(update={"count": _share(group.count, share)})
                    for group in self.tasks
                ),
                "faults": tuple(
                    fault.model_copy(
                        update={"count": 1 if fault.once else _share(fault.count, share)}
                    )
                    for fault in self.faults
                ),
            }
        )

    def orders(self, seed: int) -> list[Order]:
        """All tasks, in the order in which this seed enqueues them."""
        groups = [group for group in self.tasks for _ in range(group.count)]
        random.Random(f"{seed} tasks").shuffle(groups)
        return [group.order(number) for number, group in enumerate(groups)]

    def plan(self, seed: int) -> list[Planned]:
        """When to inject which fault.

        Injections of one fault are spread evenly over the load, each moved a little at random, and
        all of them early enough to be healed before it ends.
        """
        draw = random.Random(f"{seed} faults")
        planned = []
        for index, fault in enumerate(self.faults):
            first = min(1.0, self.load_seconds / 10)
            last = max(first, self.load_seconds - fault.lasts)
            step = (last - first) / fault.count
            planned += [
                Planned(first + step * (turn + draw.random()), index) for turn in range(fault.count)
            ]
        return sorted(planned)

    def text(self) -> str:
        """This scenario as a file that `load_scenario` reads."""
        data = self.model_dump(mode="json", exclude_defaults=True) | {
            "invariants": sorted(self.invariants)
        }
        return yaml.safe_dump(data, sort_keys=False)


def _share(count: int, share: float) -> int:
    return max(1, round(count * share))


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file. Raises ScenarioError, which names file, line and field."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read {path}: {error}") from error
    return parse_scenario(text, str(path))


def parse_scenario(text: str, where: str) -> Scenario:
    """Read a scenario from YAML text; `where` names it in errors."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ScenarioError(f"{where}, line {line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        # A control character, an impossible date, a number or a nesting beyond all bounds.
        raise ScenarioError(f"{where}: not YAML that can be read: {error}") from error
    if not isinstance(data, dict):
        raise ScenarioError(f"{where}, line 1: a scenario is a mapping with a name")
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        line, field = _locate(node, first["loc"])
        raise ScenarioError(f"{where}, line {line}: {field}: {first['msg']}") from error


def _locate(node: yaml.Node | None, path: tuple[str | int, ...]) -> tuple[int, str]:
    """The line of the innermost node on the path that stands in the file, and the field's name."""
    line, names = 1, []
    for part in path:
        if isinstance(node, yaml.MappingNode):
            line = node.start_mark.line + 1
            pairs = {key.value: (key, value) for key, value in node.value}
            names.append(str(part))
            if part not in pairs:
                # A tag of a union (a fault's kind) is part of the path but not of the file; so is
                # a field that is missing.
                if len(names) > 1 and part == _kind(node):
                    names.pop()
                    continue
                break
            key, node = pairs[part]
            line = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            names.append(str(part + 1))
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line, ".".join(names) or "scenario"


def _kind(node: yaml.MappingNode) -> str | None:
    for key, value in node.value:
        if key.value == "kind":
            return str(value.value)
    return None
