"""What a CI job shows of runs: Markdown that no text of a run can break."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from chaos.history.events import Fault, History
from chaos.invariants.verdict import Failure, Verdict
from chaos.keep import Ran
from chaos.scenario import parse_scenario
from chaos.summary import markdown
from tests.chaos.invariants.build import Story

SCENARIO = parse_scenario(
    """
name: tiny
about: Nothing.
load_seconds: 1
workers: {count: 1}
tasks: [{behaviour: quick, count: 7}]
invariants: [fenced]
bounds: {reclaim: 1, progress: 1}
""",
    "here",
)


def history(bites: int = 1) -> History:
    """A history in which one kill was injected, and bit or not."""
    kill = Fault(0, "kill", "inject", "w1.1", "0")
    faults = (kill, *[kill._replace(action="bite")] * bites)
    return replace(Story().history(), faults=faults, named=frozenset({"fenced"}))


def ran(outcome: str, sentence: str = "", bites: int = 1) -> Ran:
    """A run with one verdict."""
    failures = (Failure(sentence, 1, 1),) if outcome == "fail" else ()
    verdict = Verdict("fenced", outcome, 1, sentence, failures)  # type: ignore[arg-type] # a word
    return Ran(history(bites), (verdict,), Path("reports/tiny-1"))


def test_a_row_a_scenario_says_verdict_time_and_what_bit() -> None:
    assert markdown([(SCENARIO, 12.34, ran("pass"))]).splitlines() == [
        "### chaos: 1 pass",
        "",
        "| scenario | verdict | seconds | tasks | what bit (of how often) |",
        "|---|---|---:|---:|---|",
        "| tiny | ✅ pass | 12.3 | 7 | kill 1/1 |",
    ]


def test_what_did_not_pass_is_told_below_with_the_command_that_runs_it_again() -> None:
    told = markdown(
        [
            (SCENARIO, 1, ran("fail", "task 1: w1|w2 wrote <b>\n`x`")),
            (SCENARIO, 1, ran("pass", bites=0)),
            (SCENARIO, 1, None),
        ]
    )
    heading, *rest = told.splitlines()
    assert heading == "### chaos: 1 fail, 1 inconclusive, 1 broken"
    assert rest[3:] == [
        "| tiny | ❌ fail | 1.0 | 7 | kill 1/1 |",
        "| tiny | ⚠️ inconclusive | 1.0 | 7 | kill 0/1 |",
        "| tiny | 💥 broken | 1.0 | 7 |  |",
        "",
        "**tiny: fail**: fenced failed",
        "",
        r"- `fenced`: task 1: w1\|w2 wrote &lt;b> \`x\`",
        "- again: `chaos replay reports/tiny-1`",
        "",
        "**tiny: inconclusive**: fault kill was injected 1 time and never bit",
        "",
        "- again: `chaos replay reports/tiny-1`",
    ]
