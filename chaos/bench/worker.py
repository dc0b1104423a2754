"""A worker process of the bench: a production worker whose claims are timed.

Three functions of the worker's module are wrapped, nothing else is changed. Making an owner, the
step before each claim, waits the first time until all workers are there. The claim is timed, with
the completions that its statement writes. What was seen is written when the worker has stopped.
"""

from __future__ import annotations

import json
import logging
import signal
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from chaos.bench import effect, noop
from chaos.bench.held import live, pass_gate
from chaos.bench.setting import DEFAULT, Setting, parse_setting
from scheduler import Registry, Worker
from scheduler import worker as production

VAIN = "vain"  # the file that is there once somebody asked and got nothing


@dataclass(slots=True)
class Seen:
    """What one worker saw. Parallel lists, one entry a claim.

    began: when, in seconds on the wall clock. took: seconds. got: tasks. ran: handlers in all.
    """

    began: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    got: list[int] = field(default_factory=list)
    ran: int = 0


def work(dsn: str, name: str, setting: str, directory: str, transactional: bool) -> None:
    """The process's life, in a child of the fork server. Does not return."""
    live(directory, name, lambda: _work(dsn, name, setting, Path(directory), transactional))


def _work(dsn: str, name: str, setting: str, directory: Path, transactional: bool) -> None:
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING)
    registry, ran = effect.registry() if transactional else noop.registry()
    seen = Seen()
    _wrap(seen, name, directory)
    worker = make_worker(registry, dsn, name, parse_setting(setting))
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    worker.run()
    seen.ran = next(ran)
    (directory / f"{name}.json").write_text(json.dumps(asdict(seen)))


def make_worker(registry: Registry, dsn: str, name: str, setting: Setting) -> Worker:
    """A worker as the setting says."""
    if setting.name == DEFAULT:
        return Worker(registry, dsn, name=name)  # whatever the defaults of this version are
    return Worker(registry, dsn, name=name, slots=setting.slots, prefetch=setting.prefetch)


def _wrap(seen: Seen, name: str, directory: Path) -> None:
    genuine = {
        each: getattr(production, each) for each in ("claim", "complete_and_claim", "new_owner")
    }
    vain = directory / VAIN

    def gated(worker: str) -> Any:
        if not seen.began:
            pass_gate(directory, name)
        return genuine["new_owner"](worker)

    def timed(name: str, *arguments: Any, **named: Any) -> Any:
        seen.began.append(time.time())
        began = time.perf_counter()
        found = genuine[name](*arguments, **named)
        seen.took.append(time.perf_counter() - began)
        attempts = found if name == "claim" else found[1]
        seen.got.append(len(attempts))
        if not attempts and not vain.exists():
            vain.touch()
        return found

    timed_both = ((each, partial(timed, each)) for each in ("claim", "complete_and_claim"))
    for each, wrapper in (("new_owner", gated), *timed_both):
        setattr(production, each, wrapper)  # for this process's whole life


def read_seen(path: Path) -> Seen:
    """What a worker wrote."""
    return Seen(**json.loads(path.read_text()))
