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
    """Ours, with each of its settings, as a multiple of the best of Python's others and of each
    system of npm: also where that is below one."""
    ours = {setting: greatest(medians, (OURS,), (setting,)) for setting in (DEFAULT, BEST)}
    rivals = [
        (said, found)
        for said, names in (("Python's others, ", PYTHON), *(("", (name,)) for name in OTHERS))
        if (found := greatest(medians, names, (DEFAULT, BEST))) is not None
    ]
    for setting, mine in ours.items():
        if mine is None:
            continue
        for said, theirs in rivals:
            yield (
                f"ours with {_named(setting)}: {medians[mine]:,.0f} {unit} at {mine.at} workers,"
                f" {medians[mine] / medians[theirs]:.2f} times the best of {said}{theirs.system}"
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
