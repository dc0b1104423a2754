"""The real parts a run needs: PostgreSQL servers and Toxiproxy, owned from start to removal."""

import os
import tempfile
from pathlib import Path


class ClusterError(Exception):
    """A part could not be found, started or driven. The message says what to do about it."""


def place() -> Path:
    """Where all servers of this user live. Here, since to know it must cost nobody the imports of
    those who run servers.
    """
    return Path(tempfile.gettempdir()).resolve() / f"leaseproof-{os.geteuid()}"
