"""The real parts a run needs: PostgreSQL servers and Toxiproxy, owned from start to removal."""

import os
import shutil
import tempfile
from pathlib import Path

MEMORY = Path("/dev/shm")  # Linux's file system in memory
ROOM = 4 << 30  # bytes that must be free there


class ClusterError(Exception):
    """A part could not be found, started or driven. The message says what to do about it."""


def place() -> Path:
    """Where servers of this user live. Here, since to know it must cost nobody the imports of those
    who run servers.
    """
    return Path(tempfile.gettempdir()).resolve() / _name()


def place_in_memory() -> Path:
    """Where servers live whose data need not outlast anything: to make a database there is several
    times as quick as on a disk. The other place if TMPDIR says where, or there is no room."""
    if "TMPDIR" in os.environ or not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM:
        return place()
    return MEMORY / _name()


def places() -> list[Path]:
    """All in which there may be something of ours, also if there is no room by now."""
    both = dict.fromkeys((place(), MEMORY / _name()))
    return [here for here in both if here.exists() and here.lstat().st_uid == os.geteuid()]


def _name() -> str:
    return f"leaseproof-{os.geteuid()}"
