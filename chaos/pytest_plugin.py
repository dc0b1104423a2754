"""The pytest plugin: real servers, fleets of worker processes and whole scenarios as fixtures.

It is loaded by every pytest run of an environment that has this package, so it imports nothing of
the harness before a fixture is used. Each test process has servers of its own: nothing is shared
under `pytest -n auto`, and what a killed process leaves is removed at the end of the run, or at the
next start of a server.
"""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Generator, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from chaos.cluster.postgres import Postgres
    from chaos.cluster.toxiproxy import Toxiproxy
    from chaos.testing import RunScenario, StartFleet

LONG = "chaos_long"
REPORTS = "reports"
_left_out = pytest.StashKey[int]()  # how many long runs were deselected
_failed = pytest.StashKey[bool]()  # whether a test has failed so far
_fleets = pytest.StashKey["StartFleet"]()
_made = pytest.StashKey[Path]()  # the directory of failures, if there was none before


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("chaos", "chaos: queues broken on purpose")
    group.addoption(
        "--chaos-seed",
        type=_seed,
        metavar="N",
        help="Run scenarios with this seed instead of their own.",
    )
    group.addoption(
        "--chaos-report",
        default=REPORTS,
        metavar="DIR",
        help=f"Where run directories of failures go; by default {REPORTS} in the root directory.",
    )
    group.addoption("--chaos-long", action="store_true", help=f"Run tests marked {LONG}, too.")


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is no seed: a whole number, from 0")
    return int(text)


# Long runs.


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{LONG}: a long run; left out unless --chaos-long asks")
    if not _reports(config).exists() and not hasattr(config, "workerinput"):
        config.stash[_made] = _reports(config)


@pytest.hookimpl(trylast=True)  # after -k and -m: what they leave out is not ours to count
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--chaos-long"):
        return
    long = [item for item in items if item.get_closest_marker(LONG) is not None]
    if long:
        items[:] = [item for item in items if item.get_closest_marker(LONG) is None]
        config.stash[_left_out] = len(long)
        config.hook.pytest_deselected(items=long)


def pytest_sessionfinish(session: pytest.Session) -> None:
    # A process of pytest-xdist tells the one that people look at.
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[LONG] = session.config.stash.get(_left_out, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    # Each process collected all tests. One that was killed has told nothing.
    left_out = getattr(node, "workeroutput", {}).get(LONG, 0)
    if left_out:
        node.config.stash[_left_out] = left_out


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    left_out = config.stash.get(_left_out, 0)
    if left_out:
        runs = "long run was" if left_out == 1 else "long runs were"
        terminalreporter.write_line(
            f"{left_out} {runs} left out ({LONG}); --chaos-long runs them", yellow=True
        )


# What is left of failures.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_failed] = True
    return report


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    # In the process that outlives all others. Of those pytest-xdist kills each that takes long to
    # end after Ctrl-C, and one that was killed leaves its servers.
    from chaos.cluster import ClusterError, places

    # Where the directory is somebody else's, nothing of ours is in it.
    with suppress(ClusterError, OSError):
        if any(owner for here in places() for owner in here.glob("*.owner")):
            from chaos.cluster import leftovers

            leftovers.sweep()
    made = config.stash.get(_made, None)
    if made is not None and made.exists() and not any(made.iterdir()):
        made.rmdir()


def _reports(config: pytest.Config) -> Path:
    return config.rootpath / str(config.getoption("--chaos-report"))


# Fixtures.


@pytest.fixture(scope="session")
def postgres_settings() -> Mapping[str, str]:
    """Configuration of the server, over the harness's own: override it in your conftest.py."""
    return {}


@pytest.fixture(scope="session")
def postgres(postgres_settings: Mapping[str, str]) -> Iterator[Postgres]:
    """A PostgreSQL server of this test process's own."""
    from chaos import testing
    from chaos.cluster.postgres import postgres as run

    with testing.plainly(), run(settings=postgres_settings) as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres: Postgres) -> Iterator[str]:
    """A new, empty database on it; its connection string, for the superuser."""
    from chaos import testing

    with testing.database(postgres) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def _toxiproxy() -> Iterator[Toxiproxy]:
    from chaos import testing
    from chaos.cluster.toxiproxy import toxiproxy as run

    with testing.plainly(), run() as server:
        yield server


@pytest.fixture
def toxiproxy(_toxiproxy: Toxiproxy) -> Iterator[Toxiproxy]:
    """A Toxiproxy server of this test process's own; the test's proxies are gone after it."""
    yield _toxiproxy
    _toxiproxy.remove_proxies()


@pytest.fixture
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StartFleet]:
    """Starts worker processes of a system: see `chaos.testing.StartFleet`.

    They are gone after the test, which has an error if one of them ended by itself.
    """
    from chaos import testing

    start = request.node.stash[_fleets] = testing.StartFleet(tmp_path)
    yield start
    start.end()  # if the run was interrupted: else it is done


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    # Before the test's fixtures go: workers would die of their database's end.
    deaths = item.stash[_fleets].end() if _fleets in item.stash else []
    yield
    if deaths:
        pytest.fail("\n".join(deaths), pytrace=False)


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Iterator[RunScenario]:
    """Runs a scenario and judges it: see `chaos.testing.RunScenario`.

    If the test fails, the directories of its runs are kept.
    """
    from chaos import testing

    config = request.config
    runs = testing.RunScenario(config.rootpath, _reports(config), config.getoption("--chaos-seed"))
    yield runs
    if not request.node.stash.get(_failed, False):
        runs.remove()
