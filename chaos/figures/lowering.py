"""How many recorded failures are lowered: planted bugs are run, and each failure is found again by
the explorer, as a schedule that fails by the same invariant and is right without the bug.

The ten have a race in the database as their cause: whether it goes wrong depends on the order in
which statements and commits of several sessions reach it. Left out are those that need a clock, a
crash or a lost reply as well, or a second timeline, though some of them can be lowered, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from chaos.cluster.postgres import Postgres, postgres
from chaos.explore.explore import SERVER
from chaos.explore.schedule import show
from chaos.figures.replaying import TRIES, record, shown
from chaos.lowering.projection import CannotLowerError
from chaos.lowering.recorded import lower_run
from chaos.mutants import MUTANTS

SHARE = 0.8  # of the recorded failures that must be lowered
BUGS = (
    "cancelled-task-completes",
    "cap-read-then-updated",
    "claim-ignores-the-count",
    "claim-without-lock",
    "complete-without-fence",
    "keys-without-an-index",
    "occurrence-planned-twice",
    "reclaim-ignores-expiry",
    "renews-by-id",
    "stuck-judged-by-age",
)


class Lowering(NamedTuple):
    """One planted bug, and the schedule that its failure was lowered to.

    runs: how many it took to record a failure; None if none failed by the bug's invariant.
    schedule: None if it was not lowered. searched: how many schedules it took besides that of the
    run itself. stands: whether the schedule is right without the bug. why: it was not lowered.
    """

    bug: str
    invariant: str
    scenario: str
    runs: int | None
    actors: tuple[str, ...] = ()
    schedule: str | None = None
    searched: int = 0
    stands: bool = False
    why: str = ""

    @property
    def counts(self) -> bool:
        """Whether the failure was found again, and is the bug's."""
        return self.schedule is not None and self.stands


def measure(
    bugs: Sequence[str],
    scenarios: Path,
    reports: Path,
    tell: Callable[[str], None] = lambda text: None,
) -> list[Lowering]:
    """Record a failure of each bug and lower it.

    Raises what a run raises, ScenarioError, and ExplorerError.
    """
    found = []
    with postgres(settings=SERVER) as server:
        for number, bug in enumerate(bugs, 1):
            one = _lowering(bug, scenarios, reports, server, f"lower_{number}")
            found.append(one)
            tell(f"{bug}: {_told(one)}")
    return found


def _lowering(bug: str, scenarios: Path, reports: Path, server: Postgres, name: str) -> Lowering:
    invariant, scenario = MUTANTS[bug].invariant, shown(bug, scenarios)
    recorded = record(bug, scenario, reports)
    if recorded is None:
        return Lowering(bug, invariant, scenario.name, None)
    ran, runs = recorded
    one = Lowering(bug, invariant, scenario.name, runs)
    try:
        found = lower_run(ran.history, server, name, invariant)
    except CannotLowerError as error:
        return one._replace(why=str(error))
    lowered = found.lowered
    return one._replace(
        actors=tuple(lowered.script.actors.values()),
        schedule=show(lowered.trace.choices),
        searched=lowered.searched,
        stands=bool(found.stands),
    )


def page(lowerings: Sequence[Lowering]) -> list[str]:
    """The figure as lines of Markdown: a table, and what it shows."""
    lines = [
        "| planted bug | invariant | scenario | recorded | actors | schedule | found |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in lowerings:
        recording = "no run failed so" if one.runs is None else f"in run {one.runs}"
        actors = ", ".join(f"`{words}`" for words in one.actors) or "-"
        schedule = f"`{one.schedule}`" if one.schedule else "-"
        lines.append(
            f"| `{one.bug}` | `{one.invariant}` | `{one.scenario}` | {recording} | {actors}"
            f" | {schedule} | {_told(one)} |"
        )
    recorded = [one for one in lowerings if one.runs is not None]
    lines += [
        "",
        f"lowered {sum(one.counts for one in recorded)} of {len(recorded)} recorded failures of"
        f" planted bugs whose cause is a database race; {SHARE:.0%} are asked for:"
        f" {'held' if held(lowerings) else 'NOT held'}.",
    ]
    return lines


def held(lowerings: Sequence[Lowering]) -> bool:
    """Whether each bug's failure was recorded, and enough of them were lowered."""
    lowered = sum(one.counts for one in lowerings)
    return all(one.runs is not None for one in lowerings) and lowered >= SHARE * len(lowerings)


def _told(one: Lowering) -> str:
    if one.runs is None:
        return f"none of {TRIES} runs failed {one.invariant}"
    if one.schedule is None:
        return f"not lowered: {one.why}"
    how = f"after {one.searched} schedules" if one.searched else "in the order of the run"
    return how if one.stands else f"{how}, but it is wrong without the bug, too"
