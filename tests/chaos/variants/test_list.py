"""The correct variants: each changes what it says, and no more; and what it changes really runs."""

from __future__ import annotations

import inspect
import sys
from datetime import timedelta
from pathlib import Path
from pkgutil import resolve_name
from threading import Thread

import psutil
import psycopg
import pytest
from psycopg import Connection

from chaos.cluster.processes import gone
from chaos.mutants import MUTANTS, Edit, Patch, planted
from chaos.scenario import ScenarioError, load_scenario
from chaos.systems import system
from chaos.systems.leaseproof import Leaseproof
from chaos.variants import UNMODIFIED, VARIANTS, Variant
from chaos.variants.burners import burning
from chaos.variants.running import _one_by_one
from chaos.variants.scenarios import adapted, loaded
from chaos.variants.sessions import RETRIED
from chaos.variants.variant import forget_marks, marks_here, marks_in
from scheduler import Registry, Worker, dispatch
from scheduler.dispatch import claim, declare_limits
from scheduler.session import connect_worker
from scheduler.statements import SQL, fetch, statement
from tests.chaos.hunt.test_generated import plan
from tests.waiting import wait_for

SCENARIOS = Path(__file__).parents[3] / "scenarios"
CHANGED = [variant for variant in VARIANTS.values() if variant is not UNMODIFIED]
by_name = pytest.mark.parametrize("variant", CHANGED, ids=lambda variant: variant.name)


def texts() -> dict[str, bytes]:
    """All statements that this process would run now."""
    return {file.stem: statement(file.stem) for file in sorted(SQL.glob("*.sql"))}


def test_there_are_fifteen_variants_and_more_and_none_has_the_name_of_a_bug() -> None:
    assert len(CHANGED) >= 15
    assert not VARIANTS.keys() & MUTANTS.keys()
    assert UNMODIFIED.name in VARIANTS
    changes = UNMODIFIED.edits, UNMODIFIED.patches, UNMODIFIED.workers, UNMODIFIED.faults
    assert not any(changes)


@by_name
def test_a_variant_says_what_differs_and_why_it_is_right(variant: Variant) -> None:
    assert variant.differs
    assert variant.right
    changes = variant.edits, variant.patches, variant.workers, variant.faults, variant.burners
    assert any(changes)
    # What no program runs is left to scenarios, and they are what shows the rest.
    assert variant.scenarios
    assert variant.explored or not variant.edits


@by_name
def test_a_variant_changes_its_statements_while_it_is_planted_and_no_other(
    variant: Variant,
) -> None:
    before = texts()
    with planted(variant):
        during = texts()
    assert texts() == before
    changed = {file for file in during if during[file] != before[file]}
    expected = {edit.file for edit in variant.edits}
    made_of_them = {"complete_and_claim"} if expected & {"complete", "claim"} else set()
    assert changed == expected | made_of_them


def test_the_server_accepts_what_variants_make_of_statements_and_the_explorer_knows_them(
    db: Connection,
) -> None:
    titles = {name: text.partition(b"\n")[0] for name, text in texts().items()}
    for variant in CHANGED:
        with planted(variant):
            changed = {edit.file: statement(edit.file) for edit in variant.edits}
        for file, text in changed.items():
            assert plan(db, text.decode()), variant.name
            assert text.partition(b"\n")[0] == titles[file]  # by which it is known on the wire


@pytest.mark.parametrize(
    "patch",
    {patch.target: patch for variant in CHANGED for patch in variant.patches}.values(),
    ids=lambda patch: patch.target,
)
def test_a_patch_replaces_its_target_while_it_is_planted(patch: Patch) -> None:
    before = resolve_name(patch.target)
    with planted(Variant("one", "", "", code=(patch,))):
        assert resolve_name(patch.target) is not before
    assert resolve_name(patch.target) is before


@by_name
def test_a_system_has_the_variants_name_and_its_change(variant: Variant) -> None:
    found = system(f"leaseproof:{variant.name}")
    assert isinstance(found, Leaseproof)
    assert found.change is variant


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=lambda variant: variant.name)
def test_the_scenarios_of_a_variant_run_as_it_has_them(variant: Variant) -> None:
    for name, scenario in zip(variant.scenarios, loaded(variant, SCENARIOS), strict=True):
        plain = load_scenario(SCENARIOS / f"{name}.yaml").in_short()
        assert scenario.tasks == plain.tasks
        assert scenario.invariants == plain.invariants
        workers = scenario.workers.model_dump()
        assert {field: workers[field] for field in variant.workers} == variant.workers
        assert {**workers, **plain.workers.model_dump(include=set(variant.workers))} == (
            plain.workers.model_dump()
        )
        assert len(scenario.faults) == len(plain.faults) + len(variant.faults)
        scenario.system(f"leaseproof:{variant.name}" if variant is not UNMODIFIED else "leaseproof")


def test_a_scenario_that_a_variant_makes_impossible_is_refused() -> None:
    scenario = load_scenario(SCENARIOS / "pause-past-lease.yaml")
    with pytest.raises(ScenarioError, match=r"pause-past-lease as long: .* cannot outlast"):
        adapted(scenario, Variant("long", "", "", workers={"lease": 60.0}))


# That what a variant changes is in force.


def test_the_sessions_of_a_variants_workers_have_its_settings(dsn: str) -> None:
    for variant in [one for one in CHANGED if one.settings]:
        with planted(variant), connect_worker(dsn, "w1", timedelta(seconds=1)) as connection:
            for name, value in variant.settings.items():
                [(found,)] = connection.execute(
                    "select setting from pg_settings where name = %s", [name]
                ).fetchall()
                assert found == value, variant.name


LEVELS = {"serializable": "serializable", "repeatable-read": "repeatable read"}


@pytest.mark.parametrize("name", LEVELS)
def test_statements_run_at_the_level_and_a_claim_of_limited_kinds_stays_read_committed(
    name: str, dsn: str
) -> None:
    seen: list[str] = []

    def isolation(connection: Connection) -> str:
        [(level, _)] = fetch(connection, "session_settings", {})
        return str(level)

    with planted(VARIANTS[name]), connect_worker(dsn, "w1", timedelta(seconds=1)) as connection:
        assert isolation(connection) == LEVELS[name]
        declare_limits(connection, {"job": 1})
        assert claim(connection, "w1/1", {"job": timedelta(seconds=1)}, 1, 0.0, ["job"]) == []
        with connection.transaction():
            fetch(connection, "lock_limits", {"kinds": ["job"], "idle": "1000ms"})
            seen.append(isolation(connection))
    assert seen == ["read committed"]


def test_a_statement_that_could_not_be_serialized_is_run_again(dsn: str, db: Connection) -> None:
    forget_marks()
    values = {"source": "shop", "cap": 5}
    db.execute("select scheduler.limit_source('shop', 3)")
    with planted(VARIANTS["repeatable-read"]), psycopg.connect(dsn, autocommit=True) as other:
        with db.transaction():
            db.execute("update scheduler.sources set max_outstanding = 4")
            waiting = Thread(target=fetch, args=(other, "limit_source", values))
            waiting.start()
            waits = "select exists (select from pg_locks where not granted)"
            wait_for(lambda: db.execute(waits).fetchone() == (True,), "the other to wait")
        waiting.join()
    assert RETRIED in marks_here()
    assert db.execute("select max_outstanding from scheduler.sources").fetchone() == (5,)


def test_a_worker_is_pooled_if_the_variant_says_so() -> None:
    registry = Registry()
    registry.kind("job", int)(lambda attempt, payload: None)
    with planted(VARIANTS["pooled"]):
        assert Worker(registry, "host=nowhere")._pooled
    assert not Worker(registry, "host=nowhere")._pooled


@pytest.mark.parametrize(("name", "limit"), [("one-task-a-claim", 1), ("half-a-batch", 5)])
def test_a_claim_asks_for_a_share_of_the_room(name: str, limit: int) -> None:
    given = {"claim": ("w1/1", {}, 10, 0.0, []), "complete_and_claim": ([], "w1/1", {}, 10, 0.0)}
    for patch in VARIANTS[name].code:
        function = patch.target.partition(":")[2]
        asked: dict[str, object] = {}

        def ask(*arguments: object, of: str = function, into: dict[str, object] = asked) -> None:
            into.update(inspect.signature(getattr(dispatch, of)).bind(*arguments).arguments)

        patch.make(ask)(None, *given.pop(function))
        assert asked["limit"] == limit
    assert not given


def test_outcomes_are_written_one_by_one_and_what_is_left_is_told() -> None:
    def settle(connection: object, ended: list[int], *others: object) -> list[int]:
        assert len(ended) == 1
        return ended if ended[0] % 2 else []

    assert _one_by_one(settle)(None, [1, 2, 3], None, None) == [1, 3]


def test_burners_burn_and_are_gone_afterwards() -> None:
    with burning(1) as [pid]:
        process = psutil.Process(pid)
        wait_for(lambda: process.cpu_times().user > 0, "time to be burnt")
    assert gone(process)


def test_the_marks_of_a_run_are_those_of_its_workers_logs(tmp_path: Path) -> None:
    (tmp_path / "workers").mkdir()
    (tmp_path / "workers" / "w1.1.log").write_text(
        "2026-01-01 INFO a variant's change ran: scheduler.worker:settle\nother\n"
    )
    (tmp_path / "workers" / "w2.1.log").write_text("event\n")
    assert marks_in(tmp_path) == {"scheduler.worker:settle"}


def test_a_change_leaves_a_mark_when_it_is_called_and_not_before() -> None:
    forget_marks()
    with planted(VARIANTS["outcomes-one-by-one"]):
        assert marks_here() == frozenset()
        sys.modules["scheduler.worker"].settle(None, [], None, None)
    assert marks_here() == {"scheduler.worker:settle"}


def test_an_edit_that_does_not_stand_in_its_file_is_refused() -> None:
    stale = Variant("stale", "", "", edits=(Edit("claim", "nowhere\n", ""),))
    with (
        pytest.raises(ValueError, match=r"stale: its clause does not stand in claim\.sql"),
        planted(stale),
    ):
        pass
