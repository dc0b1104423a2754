"""What README shows is what the repository has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import chaos.cli
import scheduler.cli
from chaos.invariants.judge import INVARIANTS
from chaos.systems import system

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_example_in_the_readme_is_the_one_that_the_tests_run() -> None:
    assert f"```python\n{(ROOT / 'examples' / 'shop.py').read_text()}```" in README


def test_every_invariant_is_in_the_readme_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert named == list(INVARIANTS)


@pytest.mark.parametrize("path", re.findall(r"\]\(([^)#]+)\)", README))
def test_every_link_in_the_readme_leads_somewhere(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    "line", re.findall(r"^    ((?:scheduler|chaos) .+)$", README, re.MULTILINE)
)
def test_every_command_in_the_readme_exists(line: str) -> None:
    program, command, *rest = line.split("#")[0].split()
    group = get_command({"scheduler": scheduler.cli.app, "chaos": chaos.cli.app}[program])
    assert command in group.commands  # type: ignore[attr-defined] # a click group
    for argument in rest:
        if argument.startswith("scenarios/"):
            assert (ROOT / argument).exists()
        if argument.startswith("leaseproof:"):
            assert system(argument).name == argument


@pytest.mark.parametrize("target", re.findall(r"^    make (\S+)", README, re.MULTILINE))
def test_every_make_target_in_the_readme_exists(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
