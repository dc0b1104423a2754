"""When a recurring task is due: rules, and what becomes of due times that were missed. No I/O.

A rule is a pure function of time: its due times are the same for everybody who asks, whenever they
ask. So a slot computed by two workers at once is the same slot, and nothing but the schedule's row
need be remembered.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import islice, takewhile
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
LONGEST_EVERY = timedelta(days=366)
LONGEST_EXPRESSION = 500  # characters
MISSED_AFTER = timedelta(minutes=1)
CATCH_UP = 100  # missed due times that `all` catches up at most

Missed = Literal["skip", "once", "all"]
OnDead = Literal["stop", "continue"]


@dataclass(frozen=True, slots=True)
class Every:
    """Due at a fixed rate, counted from the Unix epoch in UTC: every hour is on the hour.

    Whole seconds, from 1 second to 366 days. Raises ValueError otherwise.
    """

    period: timedelta

    def __post_init__(self) -> None:
        if not isinstance(self.period, timedelta):
            raise TypeError(f"a period must be a timedelta, not {self.period!r}")
        if not SECOND <= self.period <= LONGEST_EVERY or self.period % SECOND:
            raise ValueError(
                f"a period must be whole seconds, from 1 second to {LONGEST_EVERY.days} days,"
                f" not {self.period}"
            )

    @property
    def text(self) -> str:
        """The rule as `parse` reads it."""
        return f"every {self.period // SECOND}s"

    @property
    def timezone(self) -> str:
        """The zone that the due times are counted in."""
        return "UTC"

    def next_after(self, t: datetime) -> datetime:
        """The first due time after `t`."""
        return EPOCH + ((t - EPOCH) // self.period + 1) * self.period

    def back_from(self, t: datetime) -> Iterator[datetime]:
        """The due times at and before `t`, newest first."""
        at = EPOCH + (t - EPOCH) // self.period * self.period
        while True:
            yield at
            at -= self.period


@dataclass(frozen=True, slots=True)
class Cron:
    """Due when the wall clock of a time zone matches a cron expression of five fields.

    minute hour day-of-month month day-of-week, as in Debian's cron (`*`, lists, ranges, steps,
    names of days and months), and `L`, `LW`, `5L` and `MON#2` for the last day, the last weekday,
    the last Friday and the second Monday of a month. Days must match both day fields if one of them
    begins with `*`, otherwise either.

    Where the clock is changed, as Debian's cron does it: with an hour field and a minute field that
    do not begin with `*`, a time that the clock skips is due at the first minute after the gap, and
    a time that it shows twice is due the first time only. Two times in one gap are one due time.
    Otherwise the expression is an interval: what is skipped is not due, what is shown twice is due
    twice.

    Raises ValueError for an expression that is none or never matches, and for an unknown zone.
    """

    expression: str
    timezone: str = "UTC"

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str) or not isinstance(self.timezone, str):
            raise TypeError("a cron expression and its time zone must be texts")
        what = f"{self.expression[:LONGEST_EXPRESSION]!r} is no cron expression"
        if len(self.expression) > LONGEST_EXPRESSION:
            raise ValueError(f"{what}: it has more than {LONGEST_EXPRESSION} characters")
        if len(self.expression.split()) != 5:
            raise ValueError(
                f"{what}: give minute, hour, day of month, month and day of week; for seconds there"
                " is Every"
            )
        _zone(self.timezone)
        try:
            first = next(CronSim(self.expression, datetime(2000, 1, 1)), None)
        except CronSimError as error:
            raise ValueError(f"{what}: {str(error)[:1].lower()}{str(error)[1:]}") from error
        if first is None:
            raise ValueError(f"the cron expression {self.expression!r} never matches a date")

    @property
    def text(self) -> str:
        """The rule as `parse` reads it."""
        return f"cron {' '.join(self.expression.split())}"

    def next_after(self, t: datetime) -> datetime:
        """The first due time after `t`."""
        zone, t = _zone(self.timezone), t.astimezone(UTC)
        # Where the clock will be set back within a day, it will show again what it shows now.
        start = min(_wall(t, zone), _wall(t + DAY, zone) - DAY)
        return next(at for at in self._walk(start, zone, back=False) if at > t)

    def back_from(self, t: datetime) -> Iterator[datetime]:
        """The due times at and before `t`, newest first."""
        zone, t = _zone(self.timezone), t.astimezone(UTC)
        # Where it was set back within a day, later times of the wall clock are over already.
        start = max(_wall(t, zone), _wall(t - DAY, zone) + DAY) + SECOND
        return (at for at in self._walk(start, zone, back=True) if at <= t)

    def _walk(self, start: datetime, zone: tzinfo, back: bool) -> Iterator[datetime]:
        """Due times beyond a time of the wall clock, in order.

        The library is asked for times of the wall clock only, where there are no changes to mind,
        and they are placed in time here: with a zone it loses due times where the clock is changed
        by half an hour (Lord Howe). Each stream is in order: of two times that a clock shows, it
        shows the later one later for the first time, and for the last time too.
        """
        minute, hour = self.expression.split()[:2]
        streams: list[Iterator[datetime]]
        if not minute.startswith("*") and not hour.startswith("*"):
            streams = [(_shown(wall, zone) for wall in self._walls(start, back))]
        else:
            streams = [self._shown_as(start, zone, back, fold) for fold in (0, 1)]
        last = None
        for at in heapq.merge(*streams, reverse=back):
            if at != last:
                yield at
            last = at

    def _walls(self, start: datetime, back: bool) -> CronSim:
        return CronSim(self.expression, start, reverse=back)

    def _shown_as(self, start: datetime, zone: tzinfo, back: bool, fold: int) -> Iterator[datetime]:
        for wall in self._walls(start, back):
            at = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
            if _wall(at, zone) == wall:
                yield at


Rule = Every | Cron


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recurring task as the code declares it. Made by `Registry.schedule`; `payload` is JSON."""

    name: str
    kind: str
    payload: str
    rule: Rule
    missed: Missed
    on_dead: OnDead
    priority: int


def parse(text: str, timezone: str) -> Rule:
    """The rule that has this text and zone. Raises ValueError if this package cannot read it."""
    form, _, rest = text.partition(" ")
    if form == "every" and rest.endswith("s") and rest[:-1].isdecimal() and len(rest) < 12:
        return Every(timedelta(seconds=int(rest[:-1])))
    if form == "cron":
        return Cron(rest, timezone)
    raise ValueError(f"this version of the package cannot read the rule {text!r}")


class Plan(NamedTuple):
    """The occurrence to plan, if any, and up to where the due times are dealt with then."""

    occurrence: datetime | None
    next_at: datetime


def plan(rule: Rule, missed: Missed, next_at: datetime, now: datetime) -> Plan:
    """What a schedule plans at `now`, if the due times from `next_at` on are yet to be dealt with.

    `once` plans the latest of them, however late; `skip` the same, but only if it is at most a
    minute late; `all` the oldest of the last hundred, so that they follow one another. The work is
    bounded by that hundred, not by the time that was missed: due times are listed from the newest.
    """
    if next_at > now:
        return Plan(None, next_at)
    wanted = CATCH_UP if missed == "all" else 1
    due = list(takewhile(lambda at: at >= next_at, islice(rule.back_from(now), wanted)))
    if not due or (missed == "skip" and now - due[0] > MISSED_AFTER):
        return Plan(None, rule.next_after(now))
    return Plan(due[-1], rule.next_after(due[-1]))


def _zone(name: str) -> tzinfo:
    if name == "UTC":
        return UTC  # a minimal system may have no time zones at all
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone {name!r} here: use a name like 'Europe/Berlin'; if the system"
            " has no time zones, install the package tzdata"
        ) from None


def _wall(at: datetime, zone: tzinfo) -> datetime:
    """What the zone's wall clock shows at a time."""
    return at.astimezone(zone).replace(tzinfo=None, fold=0)


def _shown(wall: datetime, zone: tzinfo) -> datetime:
    """When the zone's wall clock first shows a time; if it skips that, when the gap is over."""
    while True:
        at = wall.replace(tzinfo=zone).astimezone(UTC)
        if _wall(at, zone) == wall:
            return at
        wall += MINUTE
