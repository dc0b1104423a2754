"""Where servers live: on the disk, or in memory if there is room and nobody said otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from chaos import cluster
from chaos.cluster import leftovers, place, place_in_memory, places
from chaos.cluster.postgres import postgres

NAME = f"leaseproof-{os.geteuid()}"


@pytest.fixture
def memory(private_root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that stands for the file system in memory, for whoever does not set TMPDIR."""
    directory = private_root.parent / "memory"
    directory.mkdir()
    directory.chmod(0o711)
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(cluster, "MEMORY", directory)
    monkeypatch.setattr(cluster, "ROOM", 0)
    return directory


@pytest.mark.slow
def test_what_need_not_last_lives_in_memory_and_the_rest_on_the_disk(memory: Path) -> None:
    with postgres() as quick, postgres(durable=True) as durable:
        assert quick.directory.parent == memory / NAME
        assert durable.directory.parent == place()
    assert [each.name for each in (memory / NAME).iterdir()] == ["sweep.lock"]


def test_whoever_sets_tmpdir_says_where_and_too_little_room_is_none(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert place_in_memory() == memory / NAME
    monkeypatch.setattr(cluster, "ROOM", shutil.disk_usage(memory).total + 1)
    assert place_in_memory() == place()
    monkeypatch.setattr(cluster, "ROOM", 0)
    monkeypatch.setenv("TMPDIR", str(memory.parent))
    assert place_in_memory() == place()
    monkeypatch.delenv("TMPDIR")
    monkeypatch.setattr(cluster, "MEMORY", memory / "not-there")
    assert place_in_memory() == place()


def test_what_dead_owners_left_in_memory_goes_although_there_is_no_room_left(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a run that was killed, and filled it."""
    code = (
        "import os, signal, sys; from pathlib import Path; from chaos.cluster import leftovers\n"
        "with leftovers.directory('cluster', Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(memory / NAME)])
    assert len(list((memory / NAME).glob("cluster-*"))) == 2
    monkeypatch.setattr(cluster, "ROOM", shutil.disk_usage(memory).total + 1)
    leftovers.sweep()
    assert list((memory / NAME).glob("cluster-*")) == []


def test_a_directory_of_somebody_else_is_not_looked_into(
    memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftovers.root(memory / NAME)
    assert memory / NAME in places()
    monkeypatch.setattr(os, "geteuid", lambda: 4_711)
    (memory / "leaseproof-4711").mkdir()
    assert memory / "leaseproof-4711" not in places()
