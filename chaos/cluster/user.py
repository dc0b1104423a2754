"""Whom servers run as: PostgreSQL and PgBouncer refuse to run as root."""

import os
import pwd
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from chaos.cluster import ClusterError


class User(NamedTuple):
    """Whom a server runs as, in subprocess's terms: None is whoever we are."""

    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] | None = None

    def own(self, path: Path) -> None:
        """Give a file or directory to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def start(
        self, command: Sequence[str], directory: Path, output: IO[bytes] | int
    ) -> subprocess.Popen[bytes]:
        """Start a program in `directory`; both its outputs go to `output`.

        A session of its own keeps Ctrl-C at the terminal from reaching it before us.
        """
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, "LC_ALL": "C"},  # messages that we can recognise
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=self.groups,
        )


def server_user() -> User:
    """Ourselves, or as root the user `postgres`, else `nobody`. Raises ClusterError."""
    if os.geteuid() != 0:
        return User()
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return User(entry.pw_uid, entry.pw_gid, ())
    raise ClusterError(
        "PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it "
        "as; add one (`useradd --system postgres`) or start the harness as another user."
    )
