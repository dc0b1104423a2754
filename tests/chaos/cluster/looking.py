"""What a test looks at: the servers below a root directory and what they left."""

import contextlib
from pathlib import Path

import psutil

from chaos.cluster.processes import wait_for


def servers_below(root: Path) -> list[psutil.Process]:
    """Every process that names or works in a path below `root`."""
    return [
        process
        for process in psutil.process_iter(["cmdline", "cwd"])
        if any(
            word is not None and word.startswith(f"{root}/")
            for word in (*(process.info["cmdline"] or ()), process.info["cwd"])
        )
    ]


def left_below(root: Path) -> list[str]:
    """The names below `root`, but for the lock file that stays."""
    return sorted(path.name for path in root.iterdir() if path.name != "sweep.lock")


def shared_memory() -> set[str]:
    """The numbers of the machine's System V segments; empty where it does not list them."""
    table = Path("/proc/sysvipc/shm")
    rows = table.read_text().splitlines()[1:] if table.exists() else []
    return {row.split()[1] for row in rows}


def shared_memory_of(data: Path) -> str:
    """The number of the segment that the server of this data directory made."""
    return (data / "postmaster.pid").read_text().splitlines()[6].split()[-1]


def halt_initdb(root: Path) -> str:
    """Stop the server that an initdb below `root` runs, at work; the number of its segment."""
    halted: list[str] = []

    def halt() -> bool:
        for pid_file in root.glob("*/data/postmaster.pid"):
            with contextlib.suppress(FileNotFoundError, psutil.NoSuchProcess):
                lines = pid_file.read_text().splitlines()
                if len(lines) >= 7 and lines[0].startswith("-"):
                    psutil.Process(int(lines[0][1:])).suspend()
                    halted.append(lines[6].split()[-1])
        return bool(halted)

    assert wait_for(halt, 60)
    return halted[0]
