"""Faults of the network between one worker and the database, through its own Toxiproxy proxy."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Literal

import psutil
from pydantic import Field

from chaos.cluster.toxiproxy import Proxy
from chaos.faults.fault import Arena, Injection, WorkerFault
from chaos.fleet import Seat
from chaos.history.events import History, worker_of


class NetworkFault(WorkerFault):
    """A fault of a worker's proxy. What it has seen at its heal: how many sessions it cut."""

    needs_proxy: ClassVar[bool] = True
    lasts: float = Field(gt=0, le=3600)

    @abstractmethod
    def add(self, proxy: Proxy) -> None:
        """Put the fault on the proxy."""

    def strike(self, arena: Arena, seat: Seat) -> Callable[[], int]:
        """Put the fault on the worker's proxy; take it off to heal."""
        proxy, pid = arena.proxies[seat.number], seat.pid
        before = _connections(pid, proxy.port)
        self.add(proxy)

        def heal() -> int:
            now = _connections(pid, proxy.port)  # first: taking some faults off cuts sessions too
            proxy.heal()
            # If the process is gone, its death and not the fault was the end of its sessions.
            return 0 if before is None or now is None else len(before - now)

        return heal


class BlackHole(NetworkFault):
    """Swallow all bytes of a worker, both ways, its connections left open.

    It bit if a lease was taken from the worker while it was cut off: it is alive, and a zombie.
    """

    outlasts_lease: ClassVar[bool] = True
    kind: Literal["black-hole"]

    def add(self, proxy: Proxy) -> None:
        """Swallow all bytes; what was swallowed is gone, and the connections with it."""
        proxy.black_hole()

    def bite(self, injection: Injection, history: History) -> str | None:
        """A lease of the worker was reclaimed while it was cut off."""
        taken = self.leases_taken(injection, history, until=injection.ended)
        return f"was cut off while {taken} of its leases were reclaimed" if taken else None


class CutSessions(NetworkFault):
    """A fault that ends sessions. It bit if sessions of the worker ended under it."""

    def bite(self, injection: Injection, history: History) -> str | None:
        """Sessions that the worker had before were gone when the fault was healed."""
        return f"lost {injection.seen} sessions" if injection.seen else None


class ResetPeer(CutSessions):
    """Reset a worker's connections as soon as they carry a byte, and new ones at once."""

    kind: Literal["reset-peer"]

    def add(self, proxy: Proxy) -> None:
        """Reset connections."""
        proxy.reset_peer()


class LimitData(CutSessions):
    """Close each of a worker's connections once the server has sent `bytes` more: in a reply."""

    kind: Literal["limit-data"]
    bytes: int = Field(ge=0, le=1_000_000_000)

    def add(self, proxy: Proxy) -> None:
        """Cut replies off."""
        proxy.limit_data(self.bytes)


class Down(CutSessions):
    """Close a worker's connections and refuse new ones."""

    kind: Literal["down"]

    def add(self, proxy: Proxy) -> None:
        """Take the proxy down."""
        proxy.down()


class SlowReplies(NetworkFault):
    """A fault that delays what the server sends.

    It bit if the reply to a claim or renewal came that much after its commit, or never. The
    commit's time is the server's and the arrival's the worker's: one machine, one clock.
    """

    @property
    @abstractmethod
    def delay(self) -> float:
        """Seconds that a reply certainly takes under it."""

    def bite(self, injection: Injection, history: History) -> str | None:
        """A reply was as late as the fault makes it, and later than the machine's lag explains."""
        slowest = max(_waits(injection, history), default=0)
        if slowest < self.delay * 1e6 + history.phases.lag:
            return None
        return f"waited {slowest / 1e6:.2f} s for a reply"


class Latency(SlowReplies):
    """Delay what the server sends to a worker by `ms`, give or take up to `jitter_ms`."""

    kind: Literal["latency"]
    ms: int = Field(ge=10, le=600_000)
    jitter_ms: int = Field(default=0, ge=0, le=600_000)

    def add(self, proxy: Proxy) -> None:
        """Delay replies."""
        proxy.latency(self.ms, self.jitter_ms)

    @property
    def delay(self) -> float:
        """Whatever the jitter, one of several replies takes the latency's half."""
        return self.ms / 2000


class Bandwidth(SlowReplies):
    """Let through only `kb_per_second` of what the server sends to a worker."""

    kind: Literal["bandwidth"]
    kb_per_second: int = Field(ge=1, le=1_000_000)

    def add(self, proxy: Proxy) -> None:
        """Narrow the way."""
        proxy.bandwidth(self.kb_per_second)

    @property
    def delay(self) -> float:
        """A reply describes its columns and has a row: 200 bytes at least."""
        return 0.2 / self.kb_per_second


class Slicer(SlowReplies):
    """Send what the server sends in pieces of about `bytes`, `delay_ms` apart."""

    kind: Literal["slicer"]
    bytes: int = Field(ge=2, le=1_000_000)
    delay_ms: int = Field(ge=1, le=10_000)

    def add(self, proxy: Proxy) -> None:
        """Slice replies."""
        proxy.slicer(self.bytes, self.delay_ms)

    @property
    def delay(self) -> float:
        """A reply has 200 bytes at least."""
        return 200 // self.bytes * self.delay_ms / 1000


def _connections(pid: int | None, port: int) -> frozenset[int] | None:
    """The local ports of a process's connections to a port of this machine; None if it is gone."""
    if pid is None:
        return None
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return None
    return frozenset(
        one.laddr.port
        for one in connections
        if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port
    )


def _waits(injection: Injection, history: History) -> Iterator[int]:
    """How long the worker waited for the reply to each claim and renewal that it committed under
    the fault, in microseconds; if none ever came, until the fault was over."""
    told: dict[tuple[int, int, int | None], int] = {}
    for note in history.notes:
        if note.worker == injection.target and note.what == "claimed":
            told[note.task, note.token, None] = note.at
        elif note.worker == injection.target and note.what == "renewed":
            told[note.task, note.token, int(note.detail)] = note.at
    leased: dict[tuple[int, int], int | None] = {}  # each lease's expiry as last committed
    for commit in history.commits:
        for task, row in commit.changes:
            if row is None or row.owner is None or worker_of(row.owner) != injection.target:
                continue
            lease = task, row.token
            claimed = lease not in leased
            renewed = not claimed and leased[lease] != row.expires
            leased[lease] = row.expires
            if (claimed or renewed) and injection.placed <= commit.at < injection.ended:
                # A worker may have rounded what it noted.
                near = (None,) if claimed else [(row.expires or 0) + off for off in (-1, 0, 1)]
                heard = [told[*lease, one] for one in near if (*lease, one) in told]
                yield (heard[0] if heard else injection.ended) - commit.at
