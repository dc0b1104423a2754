"""What the cells of `chaos bench peers` add up to, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from chaos.bench.peers.known import KNOWN
from chaos.bench.peers.peer import BEST, DEFAULT
from chaos.bench.result import OURS, Key

BENCH = "peers"
PYTHON = tuple(peer.name for peer in KNOWN if peer.runtime == "python" and peer.name != OURS)
OTHERS = tuple(peer.name for peer in KNOWN if peer.runtime != "python")


def sentences(medians: Mapping[Key, float], unit: str) -> Iterator[str]:
    """Each system's own best cell, ours first, and ours beside the best of Python's and each of
    npm's. Ours is the multiple also where it is below one."""
    ours = {setting: greatest(medians, (OURS,), (setting,)) for setting in (DEFAULT, BEST)}
    rivals = [found for name in OTHERS if (found := greatest(medians, (name,), (DEFAULT, BEST)))]
    if (python := greatest(medians, PYTHON, (DEFAULT, BEST))) is not None:
        rivals.insert(0, python)
    for setting, mine in ours.items():
        for theirs in rivals if mine is not None else ():
            assert mine is not None
            yield (
                f"ours with {_named(setting)}: {medians[mine]:,.0f} {unit} at {mine.at} workers,"
                f" {medians[mine] / medians[theirs]:.2f} times the best of {theirs.system}"
                f" ({theirs.setting}): {medians[theirs]:,.0f} at {theirs.at}"
            )


def greatest(
    medians: Mapping[Key, float], systems: tuple[str, ...], settings: tuple[str, ...]
) -> Key | None:
    """The fastest cell of these."""
    mine = [key for key in medians if key.system in systems and key.setting in settings]
    return max(mine, key=lambda key: medians[key], default=None)


def _named(setting: str) -> str:
    return "default settings" if setting == DEFAULT else "its best settings"
