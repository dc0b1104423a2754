"""Directories of dead owners go, with their servers; nothing else does."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from chaos.cluster import ClusterError, leftovers
from chaos.cluster.ports import Reservation
from chaos.cluster.processes import gone, kill_tree, wait_for


def plant(root: Path, *, pid: int, started: float) -> Path:
    """A directory with the owner file of that process."""
    directory = root / "cluster-planted"
    directory.mkdir()
    (directory / "file").touch()
    directory.with_suffix(".owner").write_text(json.dumps({"pid": pid, "started": started}))
    return directory


def sweep() -> None:
    with leftovers.directory("sweep"):
        pass


def own_start() -> float:
    with leftovers.directory("sweep") as directory:
        owner = json.loads(directory.with_suffix(".owner").read_text())
    assert owner["pid"] == os.getpid()
    return float(owner["started"])


def test_the_directory_and_its_owner_file_go_at_the_end(private_root: Path) -> None:
    with leftovers.directory("cluster") as directory:
        assert directory.is_dir()
        assert directory.with_suffix(".owner").exists()
    assert list(private_root.iterdir()) == [private_root / "sweep.lock"]


def test_the_directory_of_a_live_owner_stays(private_root: Path) -> None:
    directory = plant(private_root, pid=os.getpid(), started=own_start())
    sweep()
    assert (directory / "file").exists()


def test_the_directory_of_a_dead_owner_goes(private_root: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    directory = plant(private_root, pid=dead.pid, started=own_start())
    sweep()
    assert not directory.exists()
    assert not directory.with_suffix(".owner").exists()


def test_a_pid_that_was_given_to_another_process_is_not_the_owner(private_root: Path) -> None:
    directory = plant(private_root, pid=os.getpid(), started=own_start() - 60)
    sweep()
    assert not directory.exists()


def test_an_owner_that_ended_and_was_not_collected_is_dead(private_root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as zombie:
        process = psutil.Process(zombie.pid)
        started = own_start() + process.create_time() - psutil.Process().create_time()
        assert wait_for(lambda: process.status() == psutil.STATUS_ZOMBIE, 30)
        directory = plant(private_root, pid=zombie.pid, started=started)
        sweep()
        assert not directory.exists()


def test_an_owner_file_that_was_cut_short_has_no_owner(private_root: Path) -> None:
    directory = plant(private_root, pid=os.getpid(), started=0)
    directory.with_suffix(".owner").write_text('{"pid": 1')
    sweep()
    assert not directory.exists()
    assert not directory.with_suffix(".owner").exists()


def test_a_program_that_only_reads_a_leftover_is_not_killed(private_root: Path) -> None:
    directory = plant(private_root, pid=os.getpid(), started=0)
    follow = ["tail", "-f", str(directory / "file")]
    with subprocess.Popen(follow, stderr=subprocess.DEVNULL) as reader:
        try:
            sweep()
            assert not directory.exists()
            assert reader.poll() is None
        finally:
            reader.kill()


def test_a_server_that_ends_while_it_is_looked_for_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as server:
        process = psutil.Process(server.pid)
        process.info = {"name": "postgres"}
    monkeypatch.setattr(leftovers, "_servers", lambda path: [process])
    leftovers.end(tmp_path)


def test_a_root_that_is_no_directory_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / f"leaseproof-{os.geteuid()}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ClusterError, match="not a directory of this user; remove it"):
        leftovers.root()


def test_a_lock_that_is_not_given_back_is_an_error(tmp_path: Path) -> None:
    with (
        leftovers.locked(tmp_path / "lock"),
        pytest.raises(ClusterError, match=r"held .*lock for 0 s"),
        leftovers.locked(tmp_path / "lock", seconds=0.05),
    ):
        pass


def test_a_tree_of_processes_is_killed_to_the_last_leaf() -> None:
    nested = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    leaf = "import time; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", nested, leaf], start_new_session=True) as root:
        process = psutil.Process(root.pid)
        assert wait_for(lambda: bool(process.children()), 30)
        (child,) = process.children()
        kill_tree(process)
        assert gone(child)
        assert gone(process)


def test_a_child_that_is_forked_during_the_kill_does_not_survive(tmp_path: Path) -> None:
    busy = "import time, os\nwhile True:\n  os.fork() or time.sleep(600)\n  time.sleep(0.003)"
    with subprocess.Popen([sys.executable, "-c", busy, str(tmp_path)]) as root:
        process = psutil.Process(root.pid)
        assert wait_for(lambda: len(process.children()) > 3, 30)
        kill_tree(process)
        survivors = [
            each
            for each in psutil.process_iter(["cmdline"])
            if str(tmp_path) in (each.info["cmdline"] or ())
        ]
        for each in survivors:
            each.kill()
        assert survivors == []


def test_killing_a_tree_that_has_ended_is_no_error() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as root:
        process = psutil.Process(root.pid)
        root.wait()
        kill_tree(process)


def test_a_condition_that_never_holds_is_given_up() -> None:
    before = time.monotonic()
    assert not wait_for(lambda: False, 0.05)
    assert time.monotonic() - before >= 0.05


@pytest.mark.skipif(sys.platform != "linux", reason="the port can only be kept on Linux")
def test_a_reserved_port_refuses_clients_and_goes_to_nobody_else_but_its_server() -> None:
    reservation = Reservation()
    address = ("127.0.0.1", reservation.port)
    try:
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(address)
        with socket.socket() as thief, pytest.raises(OSError, match="Address already in use"):
            thief.bind(address)
        for _ in range(2):  # a server and, after its crash, the next
            with socket.create_server(address), socket.create_connection(address):
                pass
    finally:
        reservation.close()
