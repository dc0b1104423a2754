"""Scenario files: what runs, what is broken, what must hold. Validated, with errors that say where.

A scenario is data; the same file and seed give the same tasks, the same fault plan and the same
order. What the processes then do with it is theirs.
"""

from __future__ import annotations

import random
from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from chaos.faults import AnyFault
from chaos.faults.tasks import faults_of
from chaos.invariants.judge import INVARIANTS
from chaos.systems import Order, WorkerSettings
from chaos.workload import HOSTILE, Behaviour, Job


class ScenarioError(Exception):
    """A scenario file that cannot be used; the message names file, line and field."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Workers(_Strict):
    """The fleet: how many processes, and how each is set up. Times in seconds."""

    count: int = Field(ge=1, le=200)
    slots: int = Field(default=4, ge=1, le=100)
    prefetch: int = Field(default=0, ge=0, le=1000)
    lease: float = Field(default=2.0, ge=0.5, le=3600)
    poll: float = Field(default=0.1, ge=0.01, le=60)
    reclaim_every: float = Field(default=0.5, ge=0.05, le=60)
    grace: float = Field(default=5.0, ge=0, le=600)

    def settings(self) -> WorkerSettings:
        """What each worker process is told."""
        return WorkerSettings(
            self.slots, self.prefetch, self.lease, self.poll, self.reclaim_every, self.grace
        )


class Tasks(_Strict):
    """A group of like tasks. `delay` is how long after its enqueue each is due, in seconds."""

    behaviour: Behaviour
    count: int = Field(ge=1, le=1_000_000)
    seconds: float = Field(default=0.0, ge=0, le=3600)
    failures: int = Field(default=0, ge=0, le=1000)
    delay: float = Field(default=0.0, ge=0, le=3600)
    max_attempts: int = Field(default=20, ge=1, le=1000)

    def order(self, number: int) -> Order:
        """One task of the group, with its number in the run."""
        text = HOSTILE * 100 if self.behaviour == "hostile" else ""
        job = Job(number, self.behaviour, self.seconds, self.failures, text)
        return Order(job, self.delay, self.max_attempts)


class Bounds(_Strict):
    """How long recovery may take, in seconds, besides what the machine itself lagged."""

    reclaim: float = Field(gt=0, le=3600)
    progress: float = Field(gt=0, le=3600)


class Scenario(_Strict):
    """One scenario file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,60}$")
    about: str = Field(min_length=1)
    seed: int = Field(default=1, ge=0)
    load_seconds: float = Field(gt=0, le=86_400)
    workers: Workers
    tasks: tuple[Tasks, ...] = Field(min_length=1)
    faults: tuple[AnyFault, ...] = ()
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
                    fault.model_copy(update={"count": _share(fault.count, share)})
                    for fault in self.faults
                ),
            }
        )

    def orders(self, seed: int) -> list[Order]:
        """All tasks, in the order in which this seed enqueues them."""
        groups = [group for group in self.tasks for _ in range(group.count)]
        random.Random(f"{seed} tasks").shuffle(groups)
        return [group.order(number) for number, group in enumerate(groups)]

    def plan(self, seed: int) -> list[tuple[float, int]]:
        """When to inject which fault: (seconds since the load began, index into `faults`).

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
                (first + step * (turn + draw.random()), index) for turn in range(fault.count)
            ]
        return sorted(planned)


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
