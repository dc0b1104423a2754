"""Our own crew: worker processes, all connected before the first may claim."""

from __future__ import annotations

from pathlib import Path

from chaos.bench.held import Held
from chaos.bench.setting import Setting
from chaos.bench.worker import VAIN, Seen, read_seen


class Workers(Held):
    """`count` workers with one setting. `directory` is empty and theirs.

    transactional: whether their handlers write an effect in its task's own transaction.
    """

    def __init__(
        self,
        dsn: str,
        setting: Setting,
        count: int,
        directory: Path,
        transactional: bool = False,
    ) -> None:
        names = [f"w{number}" for number in range(1, count + 1)]
        own = {"dsn": dsn, "setting": setting.name, "transactional": transactional}
        super().__init__("chaos.bench.worker", dict.fromkeys(names, own), directory)

    @property
    def sessions(self) -> str:
        """What `connect_worker` calls its sessions."""
        return "scheduler %"

    def asked_in_vain(self) -> bool:
        """Whether a worker found nothing to claim."""
        self.check()
        return (self._directory / VAIN).exists()

    def end(self) -> list[Seen]:
        """Stop all with SIGTERM, as in production, and read what they saw."""
        self.terminate()
        self.join()
        return [read_seen(self._directory / f"{name}.json") for name in self._arguments]
