"""Wait for a condition; end a process together with everything it started."""

import contextlib
import time
from collections.abc import Callable

import psutil

from chaos.cluster import ClusterError

KILL_SECONDS = 30.0


def wait_for(condition: Callable[[], bool], seconds: float, every: float = 0.01) -> bool:
    """Look every so many seconds if `condition` holds: True, or False once `seconds` are over."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True


def gone(process: psutil.Process) -> bool:
    """Whether the process has ended. A zombie has: its parent just has not collected it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def stop_tree(process: psutil.Process) -> list[psutil.Process]:
    """SIGSTOP the process and all its descendants; those that were there, the process last.

    The root is stopped first and seen to be stopped, so that it cannot fork after the listing of
    its children: a server's connection that arrives in between would be missed.
    """

    def stopped() -> bool:
        return gone(process) or process.status() == psutil.STATUS_STOPPED

    found = [process]
    with contextlib.suppress(psutil.NoSuchProcess):
        process.suspend()
        wait_for(stopped, KILL_SECONDS)
        found = [*process.children(recursive=True), process]
    for each in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.suspend()
    return found


def kill_tree(process: psutil.Process) -> None:
    """SIGKILL the process and all its descendants; return when every one of them is gone.

    Raises ClusterError if one is still there after KILL_SECONDS.
    """
    doomed = stop_tree(process)
    for each in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    if not wait_for(lambda: all(gone(each) for each in doomed), KILL_SECONDS):
        alive = ", ".join(str(each.pid) for each in doomed if not gone(each))
        raise ClusterError(
            f"SIGKILL did not end process {alive} within {KILL_SECONDS:.0f} s; "
            "see with `ps` what it waits for, end it by hand and start again."
        )
