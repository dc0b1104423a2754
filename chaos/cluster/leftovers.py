"""Directories that servers live in, and their removal even if the run that made them was SIGKILLed.

Below one root directory a user on the disk, and one in memory, every server has `<kind>-<token>/`
and, beside it, the small file `<kind>-<token>.owner` that names the process using it. The owner
file is written before the directory and deleted after it, so a directory without one cannot exist.
Each start first removes what dead owners left.

A server's processes are recognised by the one thing that cannot be out of date and that every user
can read: the command line of a known server that names a path in that very directory. (A pid file
may not be written yet, or name a pid that was given to another process since.)
"""

import contextlib
import json
import os
import secrets
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from chaos.cluster import ClusterError, place, places
from chaos.cluster.processes import gone, kill_tree, wait_for

_SERVERS = frozenset({"postgres", "initdb", "pg_basebackup", "pgbouncer", "toxiproxy-server"})
_LOCK_SECONDS = 120.0
_QUIT_SECONDS = 10.0
# How far two readings of one process's start time may differ: the kernel rounds the boot time that
# psutil adds and we subtract again. Much less than it takes for a pid to be used again.
_SAME_START_SECONDS = 2.0


def root(path: Path | None = None) -> Path:
    """The directory of this user's servers, made on first use: `place()` or the given one.

    Raises ClusterError if the name is taken by something that is not this user's directory: the
    temporary directory is open to everybody.
    """
    path = path or place()
    path.mkdir(exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise ClusterError(
            f"{path} is not a directory of this user; remove it, or set TMPDIR to another place."
        )
    # Others may pass through but not list: a server started by root runs as an unprivileged user.
    path.chmod(0o711)
    return path


@contextmanager
def locked(path: Path, seconds: float = _LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock file `path`; the kernel releases it if we are killed.

    Raises ClusterError if another process still has it after `seconds`.
    """
    try:
        lock = FileLock(path).acquire(timeout=seconds)
    except Timeout as error:
        raise ClusterError(
            f"Another process has held {path} for {seconds:.0f} s; wait for it or end it."
        ) from error
    with lock:
        yield


@contextmanager
def directory(kind: str, where: Path | None = None) -> Iterator[Path]:
    """Make an empty directory for one server of `kind` (a plain word); remove it at the end.

    At the end its processes are ended too. What dead owners left is removed first. `where` is one
    of the places that `chaos.cluster` knows, or `place()`.
    """
    here = root(where)
    path = here / f"{kind}-{secrets.token_hex(6)}"
    sweep()
    try:
        # The lock keeps a sweep from taking an owner file that is being written for a broken one.
        with locked(here / "sweep.lock"):
            _owner_file(path).write_text(owner())
            path.mkdir()
            path.chmod(0o711)
        yield path
    finally:
        _remove(path)


def sweep() -> None:
    """Remove what dead owners left. Each start of a server does."""
    for here in map(root, places()):
        # Two starts must not sweep the same leftovers.
        with locked(here / "sweep.lock"):
            _sweep(here)


def end(path: Path) -> None:
    """End every server process of the directory; return when all are gone.

    Raises ClusterError if one survives SIGKILL.
    """
    for process in _servers(path):
        # The name as it was found: the process may have ended since, and have none any more.
        if process.info["name"] == "postgres":
            _quit(process)
        kill_tree(process)
    for pid_file in path.glob("*/postmaster.pid"):
        _free_shared_memory(pid_file)


def owner() -> str:
    """This process, as a text for `lives`."""
    return json.dumps({"pid": os.getpid(), "started": _started(os.getpid())})


def lives(owner: str) -> bool:
    """Whether a process that described itself by `owner` is there still."""
    try:
        described: dict[str, float] = json.loads(owner)
    except json.JSONDecodeError:
        return False  # cut short: its writer died on the way
    try:
        pid = int(described["pid"])
        same_start = abs(_started(pid) - described["started"]) < _SAME_START_SECONDS
        return same_start and not gone(psutil.Process(pid))
    except psutil.NoSuchProcess:
        return False


def _owner_file(path: Path) -> Path:
    return path.with_name(f"{path.name}.owner")


def _started(pid: int) -> float:
    """When the process started, in seconds on a clock that nobody can set while it lives."""
    # On Linux the kernel counts from boot; psutil adds the boot time, which moves with the clock.
    # Elsewhere it is the wall clock's reading at the start, which stays as it was.
    return psutil.Process(pid).create_time() - (psutil.boot_time() if psutil.LINUX else 0.0)


def _sweep(here: Path) -> None:
    for owner_file in here.glob("*.owner"):
        if not _owner_lives(owner_file):
            _remove(owner_file.with_suffix(""))


def _owner_lives(owner_file: Path) -> bool:
    # Owner files are written under the lock that we hold: none is being written now.
    try:
        return lives(owner_file.read_text())
    except FileNotFoundError:
        return True  # its owner removed it just now, and the directory before it


def _remove(path: Path) -> None:
    end(path)
    if path.exists():
        shutil.rmtree(path)
    _owner_file(path).unlink(missing_ok=True)


def _servers(path: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["name", "cmdline"])
        if process.info["name"] in _SERVERS
        and any(word.startswith(f"{path}/") for word in process.info["cmdline"] or ())
    ]


def _quit(postmaster: psutil.Process) -> None:
    """Ask for an immediate shutdown, in which the server still frees its shared memory."""
    with contextlib.suppress(psutil.NoSuchProcess):
        postmaster.send_signal(signal.SIGQUIT)
        # Whoever is stopped would not hear it, nor its children what it tells them.
        for process in [postmaster, *postmaster.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()
        wait_for(lambda: gone(postmaster), _QUIT_SECONDS)


def _free_shared_memory(pid_file: Path) -> None:
    """Free the System V segment of a server that was killed: only its next start would.

    Only a segment that this server made and nobody is attached to. (Linux only: elsewhere the
    system does not say so, and the segment of some fifty bytes stays until a reboot.)
    """
    table = Path("/proc/sysvipc/shm")
    lines = pid_file.read_text().splitlines()
    if len(lines) < 7 or not table.exists():
        return
    # The server that initdb runs writes its pid with a minus.
    pid, segment = lines[0].strip().removeprefix("-"), lines[6].split()[-1]
    for row in table.read_text().splitlines()[1:]:
        _, number, _, _, creator, _, attached, uid, *_ = row.split()
        if (number, creator, attached) == (segment, pid, "0"):
            # As its user: root in a container may not be allowed to free another user's segment.
            as_user = int(uid) if os.geteuid() == 0 else None
            subprocess.run(["ipcrm", "-m", segment], check=True, user=as_user)
