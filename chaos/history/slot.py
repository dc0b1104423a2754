"""The publication and the slot by which a log is witnessed: what they need, made, and dropped."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from chaos.history.watched import Watched, WitnessError

# PostgreSQL waits for every running writer before it creates a slot; one that never ends must not
# hang the harness.
_SLOT_TIMEOUT = timedelta(seconds=30)

_SESSION = """
    SELECT set_config(name, value, false)
    FROM (VALUES
        ('application_name', 'leaseproof witness'),
        ('client_encoding', 'UTF8'),
        -- The text that column values arrive in is this session's.
        ('TimeZone', 'UTC'),
        ('DateStyle', 'ISO, MDY'),
        ('IntervalStyle', 'postgres'),
        ('bytea_output', 'hex'),
        ('extra_float_digits', '1'),
        -- The barrier of drain() must be on disk, and must not wait for a standby.
        ('synchronous_commit', 'local'),
        -- A promoted standby lets nobody write until it is witnessed.
        ('default_transaction_read_only', 'off'),
        -- A role's own limits are meant for applications.
        ('statement_timeout', '0'),
        ('lock_timeout', '0')
    ) AS wanted (name, value)
"""

_TABLE = """
    SELECT ARRAY(
               SELECT a.attname::text FROM pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
           ),
           ARRAY(
               SELECT a.attname::text FROM pg_attribute AS a
               WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND a.attlen = -1 AND a.attstorage <> 'p'
           ),
           ARRAY(
               SELECT a.attname::text
               FROM pg_index AS i
               JOIN pg_attribute AS a
                 ON a.attrelid = i.indrelid
                AND a.attnum = ANY ((i.indkey::int2[])[0 : i.indnkeyatts - 1])
               WHERE i.indrelid = c.oid AND i.indimmediate
                 AND (c.relreplident = 'd' AND i.indisprimary
                      OR c.relreplident = 'i' AND i.indisreplident)
           )
    FROM pg_class AS c
    JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')
"""


def connect(dsn: str) -> psycopg.Connection[TupleRow]:
    """A session to witness by."""
    session = psycopg.connect(dsn, autocommit=True)
    try:
        session.execute(_SESSION)
    except BaseException:
        session.close()
        raise
    return session


def check_server(session: psycopg.Connection[TupleRow], name: str) -> None:
    """Refuse a server that cannot be witnessed, or not by this role or under this name."""
    if session.info.server_version < 150_000:
        raise WitnessError("PostgreSQL is older than 15, which brought column lists: upgrade it")
    [(level, role, may_replicate)] = session.execute(
        "SELECT current_setting('wal_level'), rolname, rolsuper OR rolreplication"
        " FROM pg_roles WHERE rolname = current_user"
    ).fetchall()
    if level != "logical":
        raise WitnessError(f"wal_level is {level}: set wal_level = logical and restart the server")
    if not may_replicate:
        raise WitnessError(
            f'role "{role}" may not replicate: ALTER ROLE "{role}" REPLICATION, or use one that may'
        )
    left_over = session.execute(
        "SELECT 'slot' FROM pg_replication_slots WHERE slot_name = %(name)s"
        " UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = %(name)s",
        {"name": name},
    ).fetchone()
    if left_over is not None:
        raise WitnessError(
            f"{left_over[0]} {name} exists: another run uses this database, or a killed"
            f" one left it; if so, SELECT pg_drop_replication_slot('{name}') and"
            f" DROP PUBLICATION {name}"
        )


def check_table(session: psycopg.Connection[TupleRow], one: Watched) -> frozenset[str]:
    """Refuse what PostgreSQL would only refuse later, in the system's own UPDATE or DELETE.

    Returns the watched columns whose values may be stored out of line.
    """
    schema, dot, table = one.table.partition(".")
    found = session.execute(_TABLE, (schema, table)).fetchone() if dot else None
    if found is None:
        raise WitnessError(f"there is no table {one.table} (schema-qualified name)")
    existing, toastable, identity = found
    if missing := set(one.columns) - set(existing):
        raise WitnessError(f"{one.table} has no column {', '.join(sorted(missing))}")
    if not identity:
        # FULL is refused too: PostgreSQL does not let it go with a column list.
        raise WitnessError(
            f"{one.table} has no key as its replica identity, so PostgreSQL would refuse its"
            " updates and deletes once published: give it a primary key, and ALTER TABLE"
            f" {one.table} REPLICA IDENTITY DEFAULT"
        )
    if missing := set(identity) - set(one.columns):
        raise WitnessError(
            f"watch {', '.join(sorted(missing))} of {one.table} too: a published table's"
            " columns must include its replica identity"
        )
    if one.key is not None and one.key not in identity:
        raise WitnessError(
            f"{one.key} is not in the replica identity of {one.table}, so its deletes would"
            " not say which task is gone: add it to the primary key"
        )
    return frozenset(toastable) & frozenset(one.columns)


def create(session: psycopg.Connection[TupleRow], name: str, watched: Collection[Watched]) -> None:
    """Make the publication and the slot, or neither."""
    # The publication comes first: decoding looks it up in the catalog as it was at each
    # change, so a slot that is older than its publication cannot be read.
    tables = sql.SQL(", ").join(
        sql.SQL("TABLE {} ({})").format(
            sql.Identifier(*one.table.split(".", 1)),
            sql.SQL(", ").join(map(sql.Identifier, one.columns)),
        )
        for one in watched
    )
    try:
        session.execute(
            sql.SQL("CREATE PUBLICATION {} FOR {} WITH (publish_via_partition_root = true)").format(
                sql.Identifier(name), tables
            )
        )
    except psycopg.errors.InsufficientPrivilege as error:
        raise WitnessError(
            f"cannot publish the watched tables ({error.diag.message_primary}): use their"
            " owner, with CREATE on the database, or a superuser"
        ) from error
    try:
        create_slot(session, name)
    except BaseException:
        _drop_publication(session, name)
        raise


def create_slot(session: psycopg.Connection[TupleRow], name: str) -> None:
    """Make the slot: what is committed from now on can be read by it."""
    milliseconds = _SLOT_TIMEOUT // timedelta(milliseconds=1)
    session.execute("SELECT set_config('statement_timeout', %s, false)", (str(milliseconds),))
    try:
        session.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))
    except psycopg.errors.QueryCanceled as error:
        raise WitnessError(
            f"slot {name} was not created within {_SLOT_TIMEOUT.seconds} s: it waits for"
            " every open transaction that has written; end them (pg_stat_activity)"
        ) from error
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise WitnessError(
            "all replication slots are in use: raise max_replication_slots, or drop one"
        ) from error
    session.execute("SELECT set_config('statement_timeout', '0', false)")


def drop(session: psycopg.Connection[TupleRow], name: str) -> None:
    """Drop the slot and the publication, those that are still there."""
    session.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s",
        (name,),
    )
    _drop_publication(session, name)


def _drop_publication(session: psycopg.Connection[TupleRow], name: str) -> None:
    session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name)))
