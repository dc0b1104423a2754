"""The doctor's checks of the server: version, settings, sessions, clocks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from psycopg import Connection

from scheduler.doctor.finding import Finding, some
from scheduler.migrate import applied_version, migrations
from scheduler.session import worker_settings
from scheduler.statements import fetch

VERSIONS = range(15, 19)
MOST_SKEW = 1.0  # seconds
ROUND_TRIPS = 3
LARGEST_SHARE = 0.05  # of a table's rows, dead before autovacuum comes
OLD = timedelta(minutes=5)
FULL = 0.8  # of the connections


def server_version(connection: Connection) -> Finding:
    """The versions that this package is tested with."""
    return judge_version(connection.info.server_version)


def judge_version(version: int) -> Finding:
    """The same of a version as libpq gives it, for example 150008."""
    shown = f"PostgreSQL {version // 10000}.{version % 10000}"
    if version // 10000 in VERSIONS:
        return Finding("ok", shown)
    return Finding(
        "fail" if version // 10000 < VERSIONS[0] else "warn",
        shown,
        f"use PostgreSQL {VERSIONS[0]} to {VERSIONS[-1]}",
    )


def encoding(connection: Connection) -> Finding:
    """Only UTF8 can hold every payload and error."""
    found = connection.info.parameter_status("server_encoding") or "unknown"
    if found == "UTF8":
        return Finding("ok", found)
    return Finding("fail", found, "create the database with encoding UTF8")


def schema(connection: Connection) -> Finding:
    """The schema is complete and this package's."""
    newest = migrations()[-1].version
    query = "select to_regclass('scheduler.migrations') is not null"
    if connection.execute(query).fetchone() == (False,):
        return Finding("fail", "there is no schema", "run `scheduler migrate`")
    done = applied_version(connection)
    if done == newest:
        return Finding("ok", f"version {done}")
    advice = "run `scheduler migrate`" if done < newest else "upgrade the package"
    return Finding("fail", f"version {done}, this package needs {newest}", advice)


def clock(connection: Connection) -> Finding:
    """Every due time and expiry is compared with this function, which tests replace."""
    rows = fetch(connection, "doctor/clock", {})
    body, recorded = rows[0] if rows else ("no function", None)
    body = " ".join(str(body).split()).removeprefix("RETURN ")
    if body == recorded == "statement_timestamp()":
        return Finding("ok", body)
    return Finding(
        "fail",
        f"scheduler.now() reads {body}, recorded is {recorded}",
        "this is a test's clock, or somebody's: restore the function and the setting from"
        " 0001_core.sql",
    )


def clock_skew(connection: Connection, wall: Callable[[], float]) -> Finding:
    """This machine's clock against the database's, as exactly as the round trip tells.

    Nothing depends on it but people, who compare logs of one with times of the other.
    """
    bounds = []
    for _ in range(ROUND_TRIPS):
        before = wall()
        [(server,)] = fetch(connection, "doctor/server_time", {})
        after = wall()
        bounds.append(((after - before) / 2, server - (before + after) / 2))
    uncertain, ahead = min(bounds)
    shown = f"the database is {ahead:+.3f} s ahead of this machine, give or take {uncertain:.3f} s"
    if abs(ahead) - uncertain <= MOST_SKEW:
        return Finding("ok", shown)
    return Finding("warn", shown, "let both keep time by NTP; due times are the database's")


def default_isolation(connection: Connection) -> Finding:
    """Clients under another level get serialization errors where READ COMMITTED would go on."""
    [(own,)] = fetch_setting(connection, "default_transaction_isolation")
    stored = fetch(
        connection, "doctor/stored_settings", {"setting": "default_transaction_isolation"}
    )
    others = [f"{config} ({whom})" for config, whom in stored if "read committed" not in config]
    if own != "read committed":
        others.insert(0, f"this session: {own}")
    if not others:
        return Finding("ok", str(own))
    return Finding(
        "warn",
        some(others),
        "workers set their own; clients that enqueue must be ready to repeat their transaction",
    )


def worker_session(
    connection: Connection, lease: timedelta, connect: Callable[[], Connection]
) -> Finding:
    """The settings that a worker asks for in its first message hold: some poolers drop them."""
    wanted = worker_settings(lease)
    wrong = []
    with connect() as session, connection.transaction(force_rollback=True):
        for name, value in wanted.items():
            # Set here and read back, so that both are in the server's own units.
            connection.execute("select set_config(%s, %s, true)", [name, value])
            [(expected,)] = fetch_setting(connection, name)
            [(found,)] = fetch_setting(session, name)
            if found != expected:
                wrong.append(f"{name} is {found}, not {expected}")
    if not wrong:
        return Finding("ok", f"{len(wanted)} settings hold")
    return Finding(
        "fail",
        some(wrong),
        "let workers connect to the server itself, or through a pooler in session mode that passes"
        " `options` on: without these a stopped worker keeps its tasks locked",
    )


def autovacuum(connection: Connection) -> Finding:
    """Looks for what is due pass all dead rows, so they have to be removed often."""
    [(runs, enabled, share)] = fetch(connection, "doctor/autovacuum", {})
    if not runs or not enabled:
        where = "on scheduler.tasks" if runs else "on the server"
        return Finding(
            "fail", f"off {where}", "turn it on, or looks for what is due get slower without end"
        )
    if share > LARGEST_SHARE:
        return Finding(
            "warn",
            f"comes when {share:.0%} of scheduler.tasks is dead",
            "alter table scheduler.tasks set (autovacuum_vacuum_scale_factor = 0.01)",
        )
    return Finding("ok", f"comes when {share:.0%} of scheduler.tasks is dead")


def old_transactions(connection: Connection, older: timedelta = OLD) -> Finding:
    """Dead rows stay as long as any transaction is older than they are."""
    found = [text for (text,) in fetch(connection, "doctor/old_transactions", {"older": older})]
    if found:
        return Finding(
            "warn", some(found), "end them: looks for what is due slow down as dead rows pile up"
        )
    [(all_seen,)] = fetch(connection, "doctor/sees_all_sessions", {})
    if not all_seen:
        return Finding(
            "warn",
            "only this role's own sessions can be seen",
            f"grant pg_read_all_stats to {connection.info.user}, or ask as a superuser",
        )
    return Finding("ok", f"none is older than {older}")


def prepared_transactions(connection: Connection, older: timedelta = OLD) -> Finding:
    """They hold locks and dead rows, over restarts too, until somebody ends them."""
    rows = fetch(connection, "doctor/prepared_transactions", {"older": older})
    if not rows:
        return Finding("ok", f"none is older than {older}")
    return Finding("warn", some([text for (text,) in rows]), "COMMIT PREPARED or ROLLBACK PREPARED")


def connections(connection: Connection) -> Finding:
    """Room for workers: two connections each, and one for each transactional slot."""
    [(used, most, used_here, most_here)] = fetch(connection, "doctor/connections", {})
    where, used, most = max(
        [
            ("on the server", used, most),
            *([("to this database", used_here, most_here)] if most_here >= 0 else []),
        ],
        key=lambda limit: limit[1] / max(1, limit[2]),
    )
    shown = f"{used} of {most} {where}"
    if used < FULL * most:
        return Finding("ok", shown)
    return Finding("warn", shown, "raise the limit, or run fewer workers or slots")


def durability(connection: Connection) -> Finding:
    """What is committed has to survive a crash of the server's machine."""
    [(fsync, full_pages, synchronous)] = fetch(connection, "doctor/durability", {})
    off = [name for name, on in (("fsync", fsync), ("full_page_writes", full_pages)) if not on]
    if off:
        return Finding(
            "fail", f"{' and '.join(off)} off", "turn on: a crash can damage the whole database"
        )
    stored = fetch(connection, "doctor/stored_settings", {"setting": "synchronous_commit"})
    others = [f"{config} ({whom})" for config, whom in stored if config.endswith("=off")]
    if synchronous == "off":
        others.insert(0, "this session: synchronous_commit=off")
    if others:
        return Finding(
            "warn",
            some(others),
            "turn on: a crash can lose tasks that were enqueued, and completions",
        )
    return Finding("ok", f"fsync and full_page_writes on, synchronous_commit {synchronous}")


def fetch_setting(connection: Connection, name: str) -> list[tuple[str]]:
    """One setting, as the session has it."""
    return connection.execute("select current_setting(%s)", [name]).fetchall()
