"""`chaos variants`."""

from __future__ import annotations

import json
from collections import Counter
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from typer.testing import CliRunner

from chaos.cli import app
from chaos.hunt.explorer import Baseline
from chaos.mutants import MUTANTS
from chaos.variants import VARIANTS, Variant, cli
from chaos.variants.tried import Alarm, Tried

ALARM = Alarm("explorer: fence", "fenced: task 1", "a b a")
FINE = Tried("fenced-twice", 3, 40, Counter({"pass": 2, "inconclusive": 1}), undecided=("dull",))


@pytest.mark.parametrize(
    ("tried", "code", "says"),
    [
        (FINE, 0, "False alarms: 0."),
        (FINE, 0, "no alarm, but inconclusive: fenced-twice: dull"),
        (Tried("fenced-twice", 1, 1, alarms=(ALARM,)), 1, "False alarms: 1."),
        (Tried("fenced-twice", 1, 1, alarms=(ALARM,)), 1, "fence: fenced: task 1: a b a"),
        (Tried("fenced-twice", 1, 1, unmet=("nothing ran",)), 4, "never ran: fenced-twice"),
        (Tried("fenced-twice", 1, 1, broke=("no server",)), 4, "could not be tried: fenced-twice"),
        (Tried("fenced-twice", alarms=(ALARM,), broke=("no server",)), 1, "no server"),
    ],
)
def test_it_ends_by_what_came_of_it_and_keeps_the_figures(
    tried: Tried, code: int, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cli, "_explore", lambda *_: [tried])
    asked = ["variants", "--only", "fenced-twice", "--runs", "0", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, says in done.stdout) == (code, True), done.output
    [directory] = tmp_path.glob("variants-*")
    assert says in (directory / "variants.md").read_text()
    kept = json.loads((directory / "variants.json").read_text())
    assert (kept["programs"], kept["schedules"]) == (tried.programs, tried.schedules)
    assert kept["runs"] == dict(tried.outcomes)
    assert kept["alarms"] == len(tried.alarms)
    [one] = kept["variants"]
    assert one["right"] == VARIANTS["fenced-twice"].right
    assert (code == 0) == tried.held


def test_the_parts_of_a_variant_are_summed_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seeds: list[int] = []

    def ran(variant: Variant, scenarios: object, runs: int, seed: int, *_: object) -> Tried:
        seeds.append(seed)
        return Tried(variant.name, outcomes=Counter({"pass": runs}), alarms=(ALARM,))

    names = ("fenced-twice", "slow-disk")
    monkeypatch.setattr(cli, "_explore", lambda *_: [Tried(name, 2, 9) for name in names])
    monkeypatch.setattr("chaos.variants.scenarios.run", ran)
    only = [word for name in names for word in ("--only", name)]
    asked = ["variants", *only, "--runs", "3", "--seed", "5", "--json", "--reports", str(tmp_path)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1, done.output
    told = json.loads(done.stdout)
    assert (told["programs"], told["schedules"], told["runs"]) == (4, 18, {"pass": 6})
    assert told["alarms"] == 2
    assert seeds == [5, 8]  # no seed twice


def test_a_mistake_is_answered_with_the_way_out(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["variants", "--only", "nice"])
    said = " ".join(done.output.split())
    assert done.exit_code == 2
    assert "no such variant: nice; known: unmodified, " in said
    done = CliRunner().invoke(app, ["variants", "--scenarios", str(tmp_path)])
    assert done.exit_code == 2
    assert "cannot read" in done.output


def test_a_search_that_dies_is_the_harnesss_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise BrokenProcessPool("a process was killed")

    monkeypatch.setattr(cli, "_explore", die)
    done = CliRunner().invoke(app, ["variants", "--runs", "0"])
    assert done.exit_code == 4
    assert "the harness could not do its work: a process was killed" in done.output


class Crying:
    """A pool in which the scheduler as it is fails in one program."""

    def __enter__(self) -> Crying:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to clean up."""

    def each(self, work: object, items: object) -> list[Baseline]:
        """One program's search."""
        nothing: frozenset[str] = frozenset()
        return [Baseline("fence", nothing, nothing, 1.0, 1, "a\n  invariant: fenced: no")]


def test_an_alarm_at_the_scheduler_as_it_is_is_told_whoever_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "pool", lambda *_: Crying())
    done = CliRunner().invoke(app, ["variants", "--only", "slow-disk", "--runs", "0"])
    assert done.exit_code == 1
    assert "the scheduler as it is fails, too: explorer: fence" in " ".join(done.output.split())


@pytest.mark.slow
@pytest.mark.chaos_long
def test_the_explorers_part_is_silent_at_a_variant_and_cries_at_a_bug_of_that_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bug = MUTANTS["complete-without-fence"]
    known = {
        "reclaims-a-moment-later": VARIANTS["reclaims-a-moment-later"],
        bug.name: Variant(bug.name, "no fence", "nobody minds", bug.edits),
    }
    monkeypatch.setattr(cli, "VARIANTS", known)
    asked = ["variants", "--runs", "0", "--json", "--reports", str(tmp_path)]
    few = [*asked, "--programs", "5", "--only", "reclaims-a-moment-later"]
    done = CliRunner().invoke(app, few)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["programs"] == 5

    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1, done.output
    assert [bool(one["alarms"]) for one in json.loads(done.stdout)["variants"]] == [False, True]
