"""When recurring tasks are due: rules held to a scan of every minute, and clock changes by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import count, islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler import Attempt, Cron, Every, PayloadError, Priority, Registry
from scheduler.recurring import CATCH_UP, Missed, Plan, Rule, parse, plan

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
# Clocks that change by an hour, by half an hour, at midnight, by two hours, in the south, never.
ZONES = [
    *("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Havana"),
    *("Antarctica/Troll", "America/Santiago", "Africa/Cairo", "Asia/Kathmandu", "UTC"),
]


def at(text: str) -> datetime:
    """A time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def due(rule: Rule, after: str, number: int) -> list[datetime]:
    """The next due times after a time in UTC."""
    times = [at(after)]
    for _ in range(number):
        times.append(rule.next_after(times[-1]))
    return times[1:]


# The oracle: a field is a text and the set of numbers it stands for; time is looked at minute by
# minute. It shares nothing with the package, not even the library.

Field = tuple[str, set[int]]


def field(first: int, last: int) -> st.SearchStrategy[Field]:
    """A cron field over a range of numbers."""
    every = set(range(first, last + 1))
    numbers = st.integers(first, last)
    return st.one_of(
        st.just(("*", every)),
        st.integers(1, 30).map(lambda n: (f"*/{n}", set(range(first, last + 1, n)))),
        st.sets(numbers, min_size=1, max_size=4).map(
            lambda some: (",".join(str(n) for n in sorted(some)), some)
        ),
        # Of more than one number: `5-5/2` means `5/2` to the library, and nothing to anybody else.
        st.tuples(st.integers(first, last - 1), st.integers(1, last), st.integers(1, 5)).map(
            lambda it: (
                f"{it[0]}-{min(it[0] + it[1], last)}/{it[2]}",
                set(range(it[0], min(it[0] + it[1], last) + 1, it[2])),
            )
        ),
    )


expressions = st.tuples(
    field(0, 59), field(0, 23), field(1, 31), st.just(("*", set(range(1, 13)))), field(0, 6)
)


def matches(fields: tuple[Field, ...], wall: datetime) -> bool:
    """Whether the wall clock matches the expression."""
    (_, minutes), (_, hours), (days, in_days), (_, months), (weekdays, in_weekdays) = fields
    if wall.minute not in minutes or wall.hour not in hours or wall.month not in months:
        return False
    by_day, by_weekday = wall.day in in_days, wall.isoweekday() % 7 in in_weekdays
    both = days.startswith("*") or weekdays.startswith("*")
    return by_day and by_weekday if both else by_day or by_weekday


@cache
def changes(name: str) -> list[datetime]:
    """The hours of 2026 in which the zone's clock is changed, or one in which nothing happens."""
    zone = ZoneInfo(name)
    hours = [at("2026-01-01") + timedelta(hours=n) for n in range(365 * 24)]

    def offset(time: datetime) -> timedelta | None:
        return time.astimezone(zone).utcoffset()

    return [h for h in hours if offset(h) != offset(h + 60 * MINUTE)] or hours[1000:1001]


@cache
def shown(name: str, start: datetime) -> list[tuple[datetime, datetime]]:
    """Every minute of four days, and what the zone's wall clock shows then."""
    zone = ZoneInfo(name)
    minutes = (start + n * MINUTE for n in range(4 * 1440))
    return [(minute, minute.astimezone(zone).replace(tzinfo=None)) for minute in minutes]


def scanned(fields: tuple[Field, ...], name: str, start: datetime) -> set[datetime]:
    """The due times of four days, found by looking at every minute."""
    table = shown(name, start)
    if any(text.startswith("*") for text, _ in fields[:2]):
        return {minute for minute, wall in table if matches(fields, wall)}
    found = set()
    latest = table[0][1]
    for minute, wall in table:
        while latest < wall:  # what the clock shows for the first time, or has just skipped
            latest += MINUTE
            if matches(fields, latest):
                found.add(minute)
    return found


@settings(max_examples=40)
@given(expressions, st.sampled_from(ZONES), st.data())
def test_a_cron_rule_is_due_when_a_scan_of_every_minute_says_so(
    fields: tuple[Field, ...], name: str, data: st.DataObject
) -> None:
    rule = Cron(" ".join(text for text, _ in fields), name)
    start = data.draw(st.sampled_from(changes(name))) - 2 * DAY
    oracle = scanned(fields, name, start)
    # Not the edges of the scan, where it does not know what was shown before.
    low = start + data.draw(st.integers(24 * 60, 50 * 60)) * MINUTE
    high = low + data.draw(st.integers(1, 6 * 60)) * MINUTE
    expected = sorted(time for time in oracle if low <= time <= high)
    assert [*takewhile(lambda time: time >= low, rule.back_from(high))] == expected[::-1]
    time = low - MICROSECOND
    for one in expected[:20]:
        time = rule.next_after(time)
        assert time == one
    if not expected:
        assert rule.next_after(time) > high


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        # Skipped: due at the first minute after the gap, once for two times in it.
        ("Europe/Berlin", "30 2 * * *", "2026-03-28", ["28T01:30", "29T01:00", "30T00:30"]),
        ("Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00", ["29T01:00", "30T00:00", "30T00:30"]),
        ("America/New_York", "15 2 * * *", "2026-03-07T12:00", ["08T07:00", "09T06:15"]),
        ("Australia/Lord_Howe", "15 2 * * *", "2026-10-03", ["03T15:30", "04T15:15"]),
        # Shown twice: due the first time.
        ("Europe/Berlin", "30 2 * * *", "2026-10-24T12:00", ["25T00:30", "26T01:30"]),
        ("America/New_York", "15 1 * * *", "2026-10-31T12:00", ["01T05:15", "02T06:15"]),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04", ["04T14:45", "05T15:15"]),
        # Asked in the second pass of an hour, whose first pass had the time.
        ("Europe/Berlin", "45 2 * * *", "2026-10-25T01:30", ["26T01:45"]),
        # Intervals: real time, skipped times are not due and those shown twice are due twice.
        ("Europe/Berlin", "30 */2 * * *", "2026-03-29", ["29T02:30", "29T04:30"]),
        ("Europe/Berlin", "30 * * * *", "2026-10-25", ["25T00:30", "25T01:30", "25T02:30"]),
        (
            "America/New_York",
            "15 * * * *",
            "2026-11-01T05:00",
            ["01T05:15", "01T06:15", "01T07:15"],
        ),
        ("Australia/Lord_Howe", "0 */3 * * *", "2026-10-03T13:30", ["03T16:00", "03T19:00"]),
        ("Australia/Lord_Howe", "45 * * * *", "2026-04-04T14:30", ["04T14:45", "04T15:15"]),
    ],
)
def test_each_slot_is_due_once_where_the_clock_is_changed(
    zone: str, expression: str, after: str, expected: list[str]
) -> None:
    rule = Cron(expression, zone)
    found = due(rule, after, len(expected))
    assert [f"{time:%dT%H:%M}" for time in found] == expected
    assert [*islice(rule.back_from(found[-1]), len(found))] == found[::-1]


@pytest.mark.parametrize("expression", ["45 2 * * *", "45 * * * *"])
def test_what_a_clock_showed_before_it_was_set_back_is_over(expression: str) -> None:
    second_half_past_two = at("2026-10-25T01:30")
    latest = next(Cron(expression, "Europe/Berlin").back_from(second_half_past_two))
    assert latest == at("2026-10-25T00:45")


def test_the_29th_of_february_is_due_in_leap_years() -> None:
    rule = Cron("0 12 29 2 *")
    assert due(rule, "2026-01-01", 2) == [at("2028-02-29T12:00"), at("2032-02-29T12:00")]
    assert due(rule, "2096-03-01", 1) == [at("2104-02-29T12:00")]
    assert next(rule.back_from(at("2026-01-01"))) == at("2024-02-29T12:00")


def test_a_time_may_be_given_in_any_zone() -> None:
    rule = Cron("30 2 * * *", "Europe/Berlin")
    for zone in map(ZoneInfo, ZONES):
        here = at("2026-10-25T00:45").astimezone(zone)
        assert rule.next_after(here) == at("2026-10-26T01:30")
        assert next(rule.back_from(here)) == at("2026-10-25T00:30")


@given(
    st.integers(1, 366 * 86_400),
    st.datetimes(datetime(1980, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),
)
def test_a_fixed_rate_counts_from_the_epoch(seconds: int, time: datetime) -> None:
    rule = Every(timedelta(seconds=seconds))
    following, [latest, before] = rule.next_after(time), [*islice(rule.back_from(time), 2)]
    assert latest <= time < following
    assert following - latest == latest - before == rule.period
    assert latest.timestamp() % seconds == 0


RULES: list[Rule] = [
    Every(timedelta(minutes=7)),
    Cron("*/10 * * * *"),
    Cron("30 2 * * *", "Europe/Berlin"),
    Cron("0 9,17 * * MON-FRI", "America/New_York"),
]


@given(
    st.sampled_from(RULES),
    st.sampled_from(["skip", "once", "all"]),
    st.integers(0, 400 * 1440),
    st.integers(-5, 3 * 1440),
)
def test_the_plan_is_what_the_policy_says_of_the_due_times_that_were_missed(
    rule: Rule, missed: Missed, first: int, late: int
) -> None:
    next_at = at("2026-01-01") + first * MINUTE
    now = next_at + late * MINUTE
    times: Iterator[datetime] = iter([])
    if rule.next_after(next_at - MICROSECOND) <= now:
        times = takewhile(lambda time: time <= now, all_due(rule, next_at - MICROSECOND))
    missing = [*times]
    latest = missing[-1] if missing else None
    decided = plan(rule, missed, next_at, now)
    if now < next_at:
        assert decided == Plan(None, next_at)
    elif missed == "all" and missing:
        oldest = missing[-CATCH_UP:][0]
        assert decided == Plan(oldest, rule.next_after(oldest))
    elif missed == "skip" and latest and now - latest > MINUTE:
        assert decided == Plan(None, rule.next_after(now))
    else:
        assert decided == Plan(latest, rule.next_after(now))


def all_due(rule: Rule, time: datetime) -> Iterator[datetime]:
    """The due times after a time."""
    for _ in count():
        yield (time := rule.next_after(time))


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_years_without_a_worker_are_planned_at_once(
    missed: Missed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    real = Cron._walls

    def counted(self: Cron, start: datetime, back: bool) -> Iterator[datetime]:
        nonlocal asked
        for wall in real(self, start, back):
            asked += 1
            yield wall

    monkeypatch.setattr(Cron, "_walls", counted)
    now = at("2026-06-01T12:00:30")
    occurrence, next_at = plan(Cron("* * * * *", "Europe/Berlin"), missed, at("2021-01-01"), now)
    late = 99 * MINUTE if missed == "all" else 0 * MINUTE
    assert occurrence == at("2026-06-01T12:00") - late
    assert next_at == occurrence + MINUTE
    assert asked < 500


def test_a_slot_just_over_a_minute_late_is_skipped_and_one_just_not_is_run() -> None:
    rule, slot = Every(timedelta(hours=1)), at("2026-01-01T12:00")
    assert plan(rule, "skip", slot, slot + MINUTE).occurrence == slot
    assert plan(rule, "skip", slot, slot + MINUTE + MICROSECOND).occurrence is None


@pytest.mark.parametrize(
    "rule", [*RULES, Cron("0  0 L * fri"), Every(timedelta(days=366)), Cron("0 0 1 1 5L")]
)
def test_a_rule_is_read_back_from_its_text(rule: Rule) -> None:
    again = parse(rule.text, rule.timezone)
    assert again.text == rule.text
    assert again.next_after(at("2026-01-01")) == rule.next_after(at("2026-01-01"))


@pytest.mark.parametrize(
    "text",
    ["", "every", "every 5m", "every -1s", "every 0s", "every " + "9" * 5000 + "s", "hourly"],
)
def test_a_text_that_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text, "UTC")


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "0 * * * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *"),
        *("* * * * 8", "*/0 * * * *", "x * * * *", "5-1 * * * *", "@hourly", "-1 * * * *"),
        *("0 0 30 2 *", "0 0 31 4,6 *", "0 0 */31 2 MON#5", "٣ * * * *", "* * * * ³L"),
        *("0" * 5000 + " * * * *", "\0 * * * *", "* " * 300),
    ],
)
def test_an_expression_that_is_none_or_never_matches_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="cron expression") as refused:
        Cron(expression)
    assert len(str(refused.value)) < 1_000


@pytest.mark.parametrize("zone", ["", "Mars/Base", "Europe", "../UTC", "/etc/passwd", "a\0b"])
def test_an_unknown_zone_is_refused_with_the_way_out(zone: str) -> None:
    with pytest.raises(ValueError, match=r"there is no time zone .* use a name like"):
        Cron("* * * * *", zone)


@pytest.mark.parametrize(
    "period", [timedelta(0), timedelta(seconds=1.5), timedelta(days=367), timedelta(seconds=-1)]
)
def test_a_period_that_cannot_be_meant_is_refused(period: timedelta) -> None:
    with pytest.raises(ValueError, match="whole seconds, from 1 second to 366 days"):
        Every(period)


def declared(**changed: Any) -> Callable[[], object]:
    """A call that declares a schedule, with some of its settings changed."""
    registry = Registry()

    @registry.kind("report", int)
    def report(attempt: Attempt, payload: int) -> None:
        """Only declared."""

    @Registry().kind("report", int)
    def other(attempt: Attempt, payload: int) -> None:
        """Of another registry."""

    registry.schedule("taken", report, 1, Every(DAY))
    given = {"name": "nightly", "kind": report, "payload": 1, "rule": Every(DAY), **changed}
    if given["kind"] == "other":
        given["kind"] = other
    return lambda: registry.schedule(**given)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"name": "a b"}, ValueError, "'a b' cannot name a schedule"),
        ({"name": "taken"}, ValueError, "schedule 'taken' is declared twice"),
        (
            {"kind": "other"},
            ValueError,
            "schedule 'nightly': kind 'report' is not of this registry",
        ),
        ({"payload": "x"}, PayloadError, "refused by its model"),
        ({"rule": "0 0 * * *"}, TypeError, "schedule 'nightly': a rule is an Every or a Cron"),
        (
            {"missed": "never"},
            ValueError,
            "missed must be one of 'skip', 'once', 'all', not 'never'",
        ),
        ({"on_dead": "x"}, ValueError, "on_dead must be one of 'stop', 'continue', not 'x'"),
        ({"priority": 4}, ValueError, "priority must be one of"),
    ],
)
def test_a_mistake_in_a_declaration_is_refused_where_it_is_made(
    changed: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        declared(**changed)()


def test_a_declaration_is_kept_with_its_payload_as_json() -> None:
    made = declared(priority=Priority.HIGH)()
    assert getattr(made, "payload", None) == "1"
    assert getattr(made, "priority", None) == Priority.HIGH


def test_an_application_that_cannot_be_named_so_is_refused() -> None:
    with pytest.raises(ValueError, match="'a b' cannot name an application"):
        Registry(application="a b")


def test_utc_needs_no_time_zone_database() -> None:
    zone: tzinfo = UTC
    assert Cron("0 0 * * *").next_after(at("2026-01-01")).tzinfo is zone
