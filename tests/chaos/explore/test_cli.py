"""`chaos explore`."""

from __future__ import annotations

import sys

import pytest
import typer
from typer.testing import CliRunner

from chaos.explore.cli import explore_command

app = typer.Typer()
app.command()(explore_command)


@pytest.mark.slow
def test_a_mutant_is_red_and_printed_as_a_test() -> None:
    done = CliRunner().invoke(
        app, ["completions", "--system", "leaseproof:claim-without-lock", "--preemptions", "1"]
    )
    assert done.exit_code == 1, done.output
    assert "fail" in done.output
    assert "def test_a_b_a_b() -> None:" in done.output


@pytest.mark.slow
def test_a_search_that_is_cut_short_is_inconclusive() -> None:
    done = CliRunner().invoke(app, ["completions", "--schedules", "2"])
    assert done.exit_code == 3, done.output
    assert "cut short after 2 schedules" in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "code"), [("leaseproof", 0), ("leaseproof:claim-without-lock", 1)]
)
def test_one_schedule_is_replayed(system: str, code: int) -> None:
    done = CliRunner().invoke(app, ["completions", "--system", system, "--replay", "a b a"])
    assert done.exit_code == code, done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no-such"], "known programs: claims"),
        (["claims", "--system", "other"], "known systems"),
        (["--replay", "a b"], "needs the program"),
        (["claims", "--replay", "a B"], "'B' is no step"),
        (["zombie", "--system", "leaseproof:no-such"], "known systems: leaseproof, leaseproof:"),
        (
            ["zombie", "--system", "leaseproof:serializable"],
            "a correct variant: `chaos variants --only serializable --runs 0` explores it",
        ),
        (
            ["zombie", "--system", "leaseproof:serializable", "--replay", "a"],
            "serializable is a correct variant",
        ),
        (
            ["effect", "--crash-points", "--preemptions", "1"],
            "--crash-points breaks a life once at each point in each way: leave --preemptions out",
        ),
        (["--crash-points", "--schedules", "1"], "leave --schedules out"),
        (
            ["zombie", "--replay", "a", "--preemptions", "1", "--schedules", "1"],
            "--replay runs the one schedule that it is given: leave --preemptions and --schedules",
        ),
        (["zombie", "--system", "examples.letterbox.adapter:QUEUE"], "chaos.explore.explore"),
    ],
)
def test_a_mistake_is_answered_with_the_way_out(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a server is started for nothing")

    for place in ("cli", "explore"):
        monkeypatch.setattr(sys.modules[f"chaos.explore.{place}"], "postgres", started)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())
