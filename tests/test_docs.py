"""What README and docs show is what the repository has."""

from __future__ import annotations

import os
import re
import shlex
from configparser import RawConfigParser
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import chaos.cli
import scheduler.cli
from chaos.cluster.toxiproxy import VERSION
from chaos.invariants.judge import INVARIANTS
from chaos.systems import system

ROOT = Path(__file__).parents[1]
PAGES = {page.name: page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]}
README = PAGES["README.md"]


def found(pattern: str) -> list[tuple[str, str]]:
    """Each match of a pattern on any page: the page, and whichever group matched."""
    return [
        (name, match)
        for name, text in PAGES.items()
        for match in dict.fromkeys(m[m.lastindex or 0] for m in re.finditer(pattern, text, re.M))
    ]


def test_the_readme_shows_the_examples_that_the_tests_run() -> None:
    """The shop in full, and a part of the office."""
    whole, part = re.findall(r"```python\n(.*?)```", README, re.S)
    assert whole == (ROOT / "examples" / "shop.py").read_text()
    assert part in (ROOT / "examples" / "office.py").read_text()


def test_every_invariant_is_in_the_readme_and_no_other() -> None:
    named = re.findall(r"^\| `([a-z-]+)` \|", README, re.MULTILINE)
    assert named == list(INVARIANTS)


@pytest.mark.parametrize(("page", "path"), found(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)"))
def test_every_link_leads_somewhere(page: str, path: str) -> None:
    assert (ROOT / ("" if page == "README.md" else "docs") / path).exists()


@pytest.mark.parametrize(("page", "path"), found(r"`(tests/\S+\.py)`"))
def test_every_test_that_is_named_exists(page: str, path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize(("page", "path"), found(r"(tests/[a-z/]+/prepare)\b"))
def test_every_script_that_is_named_can_be_run(page: str, path: str) -> None:
    assert os.access(ROOT / path, os.X_OK)


@pytest.mark.parametrize(("page", "image"), found(r"`(\S+/toxiproxy:\S+|postgres:\d+)`"))
def test_every_image_that_is_named_is_the_default(page: str, image: str) -> None:
    code = (ROOT / "chaos" / "cluster" / "containers.py").read_text()
    assert f'"{image.replace(VERSION, "{VERSION}")}"' in code


def test_every_scenario_that_shows_a_guarantee_exists() -> None:
    rows = [row for row in PAGES["guarantees.md"].splitlines() if row.startswith("| **")]
    shown = [row.split("|")[5] for row in rows]
    assert len(shown) > 5
    for names in shown:
        for name in re.findall(r"`([a-z-]+)`", names):
            assert (ROOT / "scenarios" / f"{name}.yaml").exists(), name
        assert "`" in names, f"nothing shows {names!r}"


@pytest.mark.parametrize(
    ("page", "line"),
    found(r"^    ((?:scheduler|chaos) [a-z].+)$|`((?:scheduler|chaos) [a-z][^`]*)`"),
)
def test_every_command_exists(page: str, line: str) -> None:
    check(line.split("#")[0].split())


def check(words: list[str]) -> None:
    """Fail unless a command of ours is one that its program takes."""
    program, *rest = words
    command = get_command({"scheduler": scheduler.cli.app, "chaos": chaos.cli.app}[program])
    while rest and hasattr(command, "commands"):  # a click group
        assert rest[0] in command.commands
        command = command.commands[rest.pop(0)]
    options = {"--help"} | {name for option in command.params for name in option.opts}
    for argument in rest:
        if argument.startswith("--"):
            assert argument.split("=")[0] in options
        if argument.startswith("scenarios/") and "NAME" not in argument:
            assert (ROOT / argument).exists()
        if argument.startswith("leaseproof:") and not argument.endswith(":BUG"):
            assert system(argument)


@pytest.mark.parametrize(("page", "target"), found(r"^    make (\S+)|`make (\S+)`"))
def test_every_make_target_exists(page: str, target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_systemd_unit_runs_a_command_that_exists_and_outwaits_its_grace() -> None:
    unit = RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign] # keys have capitals
    unit.read(ROOT / "ops" / "leaseproof-worker@.service")
    _, command, *arguments = unit["Service"]["ExecStart"].split()
    worker = get_command(scheduler.cli.app).commands[command]  # type: ignore[attr-defined] # a group
    options = {name for option in worker.params for name in option.opts}
    assert {one for one in arguments if one.startswith("--")} <= options
    grace = float(arguments[arguments.index("--grace") + 1])
    assert float(unit["Service"]["TimeoutStopSec"]) > grace


def test_the_compose_file_runs_commands_that_exist_and_outwaits_their_grace() -> None:
    services = yaml.safe_load((ROOT / "ops" / "compose.yaml").read_text())["services"]
    program, command, app = services["worker"]["command"]
    assert program == "scheduler"
    assert command in get_command(scheduler.cli.app).commands  # type: ignore[attr-defined] # a group
    assert app == "examples.shop:app"
    assert services["worker"]["stop_grace_period"] == "40s"
    for service in ("migrate", "worker"):
        build = services[service]["build"]
        assert (ROOT / "ops" / build["context"] / build["dockerfile"]).exists()


WORKFLOWS = [
    yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", PAGES["ci.md"], re.S)
]
GITHUB, GITLAB = WORKFLOWS
STEPS = [step for job in GITHUB["jobs"].values() for step in job["steps"]]
SCRIPTS = [step["run"] for step in STEPS if "run" in step] + GITLAB["tests"]["script"]


@pytest.mark.parametrize("line", SCRIPTS)
def test_every_command_of_a_workflow_exists(line: str, pytestconfig: pytest.Config) -> None:
    program, *rest = shlex.split(re.sub(r"\$\{\{.*?\}\}", "1", line))
    match program:
        case "chaos":
            check([program, *rest])
        case "pytest":
            for option in (word for word in rest if word.startswith("-")):
                pytestconfig.getoption(option)  # ValueError if there is none
        case _:
            assert [program, *rest][:2] == ["pip", "install"]
            assert any(word.startswith("leaseproof[chaos] @ git+") for word in rest)


def test_every_action_is_pinned_to_a_commit_whose_version_stands_beside_it() -> None:
    used = re.findall(r"uses: (.*)", PAGES["ci.md"])
    assert len(used) == sum("uses" in step for step in STEPS) > 3
    for action in used:
        assert re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), action


def test_workflows_keep_the_directories_that_the_tests_write() -> None:
    [upload] = [step["with"] for step in STEPS if "upload-artifact" in step.get("uses", "")]
    assert upload["path"] == "reports/"
    assert "reports/" in GITLAB["tests"]["artifacts"]["paths"]
    assert sum("--chaos-report reports" in line for line in SCRIPTS) == 2
    assert any(line.endswith('--summary "$GITHUB_STEP_SUMMARY"') for line in SCRIPTS)


@pytest.mark.parametrize(("page", "option"), found(r"`(--chaos-[a-z]+)"))
def test_every_option_of_the_plugin_exists(
    page: str, option: str, pytestconfig: pytest.Config
) -> None:
    pytestconfig.getoption(option)
