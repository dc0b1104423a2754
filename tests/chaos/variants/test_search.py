"""The explorer over variants: silent at what is right, and not at a bug that goes by the name."""

from __future__ import annotations

import psycopg

from chaos.hunt.explorer import Baseline, Stages
from chaos.mutants import MUTANTS
from chaos.variants import UNMODIFIED, VARIANTS, Variant
from chaos.variants.explorer import Asked, _create, as_it_is, asked, search

NOBODY: frozenset[str] = frozenset()


def passed_off(bug: str) -> Variant:
    """A planted bug that is said to be none."""
    mutant = MUTANTS[bug]
    return Variant(mutant.name, "nothing much", "nobody minds", mutant.edits, mutant.patches)


def test_nothing_cries_at_a_correct_variant_and_what_no_program_ran_is_told(
    stages: Stages,
) -> None:
    tried = search(Asked(VARIANTS["fence-as-a-row"], ("one_complete",)), stages)
    assert (tried.programs, tried.schedules, tried.alarms) == (1, 1, ())
    unseen = [f"no program of the explorer ran {file}.sql" for file in ("fail", "renew", "snooze")]
    assert set(unseen) <= set(tried.unmet)
    assert not any("complete.sql" in sentence for sentence in tried.unmet)
    assert not tried.held


def test_a_bug_that_is_passed_off_as_a_variant_raises_an_alarm(stages: Stages) -> None:
    tried = search(Asked(passed_off("complete-without-fence"), ("one_complete", "fence")), stages)
    [alarm] = tried.alarms
    assert alarm.where == "explorer: fence"
    assert "fenced: " in alarm.what
    assert alarm.shown_by.startswith("a")
    assert not tried.held
    # The stages serve the next variant as if nothing had been.
    again = search(Asked(VARIANTS["fenced-twice"], ("one_complete", "fence")), stages)
    assert again.alarms == ()


def test_a_variant_may_wait_where_the_scheduler_passes_over_a_lock(stages: Stages) -> None:
    tried = search(Asked(VARIANTS["one-claim-at-a-time"], ("limit_apart",)), stages)
    assert (tried.programs, tried.alarms, tried.unmet, tried.broke) == (1, (), (), ())


def test_settings_of_a_variant_are_in_force_in_a_database_of_its_own(stages: Stages) -> None:
    tried = search(Asked(VARIANTS["reads-whole-tables"], ("future",)), stages)
    assert (tried.programs, tried.alarms, tried.unmet) == (1, (), ())
    made = _create(VARIANTS["reads-whole-tables"], stages.create)
    with psycopg.connect(made) as connection:
        assert connection.execute("show enable_indexscan").fetchone() == ("off",)
    wrong = Variant("wrong", "", "", settings={"enable_indexes": "off"})
    tried = search(Asked(wrong, ("future",)), stages)
    assert "enable_indexes" in tried.broke[0]
    assert not tried.held


def test_code_that_no_program_calls_is_told(stages: Stages) -> None:
    tried = search(Asked(VARIANTS["outcomes-one-by-one"], ("future",)), stages)
    assert tried.unmet == ("no program of the explorer called scheduler.worker:settle",)
    tried = search(Asked(VARIANTS["serializable"], ("future",)), stages)
    assert tried.unmet == ()


def test_a_variant_is_asked_for_programs_that_run_it_first_those_that_run_all_of_it() -> None:
    cheap = Baseline("cheap", frozenset({"claim", "renew"}), NOBODY, 1.0, 1, "")
    cheaper = Baseline("cheaper", frozenset({"renew"}), NOBODY, 0.5, 1, "")
    dear = Baseline("dear", frozenset({"complete"}), NOBODY, 2.0, 9, "")
    other = Baseline("other", frozenset({"cancel"}), NOBODY, 0.1, 1, "")
    again = Baseline("again", frozenset({"renew"}), NOBODY, 0.7, 1, "")
    all_ = [dear, again, cheap, other, cheaper]
    fence = VARIANTS["locks-from-the-back"]
    assert asked(fence, all_, None).programs == ("cheaper", "dear", "again", "cheap")
    assert asked(fence, all_, 2).programs == ("cheaper", "dear")
    assert len(asked(VARIANTS["serializable"], all_, None).programs) == 5
    assert asked(VARIANTS["slow-machine"], all_, None).programs == ()


def test_an_alarm_at_the_scheduler_as_it_is_counts_too() -> None:
    silent = Baseline("one", NOBODY, NOBODY, 1.0, 4, "")
    crying = Baseline("two", NOBODY, NOBODY, 1.0, 3, "a b a\n  a did\n  invariant: fenced: no\nwho")
    tried = as_it_is([silent, crying])
    assert (tried.name, tried.programs, tried.schedules) == (UNMODIFIED.name, 2, 7)
    [alarm] = tried.alarms
    assert alarm == ("explorer: two", "invariant: fenced: no", "a b a")
