"""Results that nobody measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from chaos.bench.result import Key, Measurement, Result

MACHINE: dict[str, str | float] = {
    "processor": "abacus",
    "cores": 2,
    "commit_p50_ms_before": 0.5,
    "commit_p50_ms_after": 0.5,
}
OURS = Key("leaseproof", "1+99", 100, 4)
LIMIT = Key("pgbench", "100", 100, 4)
ONE_COMMIT = Key("pgbench-one-commit", "100", 100, 4)


def result(
    speeds: Mapping[Key, Sequence[float]], machine: Mapping[str, str | float] = MACHINE
) -> Result:
    """A contention result with these tasks/s, one a repeat."""
    return Result(
        bench="contention",
        axis="workers",
        command="chaos bench contention",
        began="2030-01-01T00:00:00Z",
        seconds=1.0,
        machine=machine,
        notes=("a note <of> mine",),
        measurements=tuple(
            Measurement(
                key,
                repeat,
                {"tasks_per_s": speed, "claim_p50": 100 / speed, "claim_p99": 200 / speed},
                {"IO:WALSync": 0.75, "CPU": 0.25},
            )
            for key, values in speeds.items()
            for repeat, speed in enumerate(values, 1)
        ),
    )
