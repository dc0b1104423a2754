"""The history of record: what PostgreSQL committed, read from its write-ahead log in commit order.

A logical slot sees every committed change of the watched tables, whoever made it and however; a
publication's column lists keep payloads out. The witness never trusts a reply it did not get: it
peeks, and moves the slot only past what it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from chaos.history import pgoutput
from chaos.history.events import Change, Commit, Effect, Ended, Row

# Messages per call: bounds memory, since the server and psycopg each hold a call's whole answer.
# (A single transaction is never split: a larger one comes as one larger answer.)
_BATCH = 20_000

# PostgreSQL waits for every running writer before it creates a slot; one that never ends must not
# hang the harness.
_SLOT_TIMEOUT = timedelta(seconds=30)

# PostgreSQL moves a value out of line only if it takes more than 24 bytes with its header of at
# most four (toast_tuple_find_biggest_attribute): such a text has more than 20.
_SHORT = 20

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

# A transaction that leaves a message in the log: its commit flushes the log, so that whatever was
# committed before, even with synchronous_commit off, can be decoded up to the returned position.
# pgoutput sends nothing for it.
_BARRIER = """
    SELECT pg_current_wal_insert_lsn()::text, pg_logical_emit_message(true, 'leaseproof', '')
"""

_PEEK = """
    SELECT data
    FROM pg_logical_slot_peek_binary_changes(
        %(slot)s, %(up_to)s::pg_lsn, %(batch)s,
        'proto_version', '1', 'publication_names', %(publication)s
    )
"""

_ADVANCE = "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)"


class WitnessError(Exception):
    """The log cannot be witnessed, or says something that the history has no word for."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A table to watch and how to read its rows.

    `table` is schema-qualified. `read` turns a row, column name to PostgreSQL's text, into an
    event. `key` names the id column of a task table, whose `read` gives a `Row`; a table without a
    key is append-only, and its `read` gives an `Ended` or an `Effect`.
    """

    table: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, str | None]], Row | Ended | Effect]
    key: str | None = None


class Witness:
    """Reads committed transactions from one server's log. For one thread at a time.

    `dsn` must be a session of its own (no transaction pooler) that may replicate and owns the
    tables. `name` names the slot and the publication. `first` is the `seq` of the first commit, and
    may be set until that is drained.
    """

    def __init__(
        self, dsn: str, watched: Sequence[Watched], name: str = "leaseproof_witness"
    ) -> None:
        self._dsn = dsn
        self._watched = {one.table: one for one in watched}
        self._name = name
        self._session: psycopg.Connection[TupleRow] | None = None
        self._open = False
        self._toastable: dict[str, frozenset[str]] = {}
        self._relations: dict[int, tuple[Watched, tuple[str, ...]]] = {}
        # The last long values of each row, by table and key: see _whole.
        self._long: dict[tuple[str, str], dict[str, str]] = {}
        self._seen = 0  # the LSN of the last commit taken
        self.first = 0
        self._lsns: list[int] = []  # of each commit that has a `seq`, ascending
        self._begun: pgoutput.Begin | None = None
        self._events: list[Change | Ended | Effect] = []
        self._ready: list[Commit] = []

    def open(self) -> None:
        """Create the publication and the slot: everything committed from now on is witnessed.

        Raises WitnessError if the server, the role or a table is not fit for it, saying what to do.
        """
        session = self._connect()
        try:
            self._check_server(session)
            for one in self._watched.values():
                self._check_table(session, one)
            self._create(session)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._open = True

    def adopt(self) -> None:
        """As `open`, on the promoted standby of a server that was witnessed under this name.

        It has that server's publication, as any other row, but no slot of its own. Nobody may have
        written since its promotion, or write before this returns: then the first commit that comes
        is the first on the new timeline, and what stands in the tables is what an update will not
        send (see `_whole`).
        """
        session = self._connect()
        try:
            for one in self._watched.values():
                self._check_table(session, one)
            self._create_slot(session)
            for one in self._watched.values():
                if one.key is not None and self._toastable[one.table]:
                    self._learn(session, one, one.key)
        except BaseException:
            session.close()
            raise
        self._session = session
        self._open = True

    def drain(self) -> list[Commit]:
        """All transactions committed before this call and not yet returned, in commit order.

        Transactions that touched no watched row give no Commit, and take no `seq`.

        Raises psycopg.OperationalError if the connection is lost (or if the session before it
        still holds the slot): call `reconnect` and drain again, nothing is lost or doubled. Raises
        WitnessError for a change that the history has no word for; the witness is of no use
        afterwards.
        """
        session = self._session
        if session is None:
            raise WitnessError("this witness is not open")
        [(target, _)] = session.execute(_BARRIER).fetchall()
        more = True
        while more:
            # Peek, then advance, and never pg_logical_slot_get_binary_changes: that one moves the
            # slot before its answer is sent, so an answer lost with the connection would be lost
            # for good.
            answer = session.execute(
                _PEEK,
                {
                    "slot": self._name,
                    "up_to": target,
                    "batch": _BATCH,
                    "publication": self._name,
                },
                binary=True,
            ).fetchall()
            end = target
            for (data,) in answer:
                message = pgoutput.decode(data)
                if message is not None:
                    self._take(message)
                if isinstance(message, pgoutput.Commit):
                    end = f"{message.end_lsn >> 32:X}/{message.end_lsn & 0xFFFFFFFF:X}"
            if self._begun is not None:
                raise WitnessError(f"slot {self._name} sent a transaction without its end")
            more = len(answer) >= _BATCH
            # If this or a later call fails, what was taken stays in _ready for the next drain; if
            # the server did not keep the advance, it sends the same again and _take skips it.
            session.execute(_ADVANCE, (self._name, end if more else target))
        commits, self._ready = self._ready, []
        return commits

    @property
    def next(self) -> int:
        """The `seq` of the next commit."""
        return self.first + len(self._lsns)

    def seq_at(self, lsn: str) -> int:
        """The `seq` of the first commit whose record does not begin before this place in the log;
        that of the next commit if there is none yet."""
        high, low = lsn.split("/")
        return self.first + bisect_left(self._lsns, int(high, 16) << 32 | int(low, 16))

    def reconnect(self, dsn: str | None = None) -> None:
        """Start a new session after a lost one, on the same server; at `dsn` if it has moved.

        Raises psycopg.OperationalError while the server is away, and WitnessError if the slot is
        gone: another server (a promoted standby has no slot), or one that gave up on it.
        """
        if not self._open:
            raise WitnessError("this witness is not open")
        if self._session is not None:
            self._session.close()
        self._dsn = dsn or self._dsn
        self._session = self._connect()
        slot = self._session.execute(
            "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (self._name,)
        ).fetchone()
        if slot is None:
            raise WitnessError(
                f"the server has no slot {self._name}: it is not the one that was witnessed so far;"
                " open a new witness on it"
            )
        if slot[0] == "lost":
            raise WitnessError(
                f"the server has dropped log that slot {self._name} still needed:"
                " raise max_slot_wal_keep_size, or drain more often"
            )

    def leave(self) -> None:
        """Close the session, and leave slot and publication to a server that is of no more use."""
        if self._session is not None:
            self._session.close()
            self._session = None
        self._open = False

    def close(self) -> None:
        """Drop the slot and the publication, those that are still there. May be called again."""
        if not self._open:
            return
        if self._session is not None:
            self._session.close()
            self._session = None
        # A new session: the old one may be lost, and whether it is shows only when it is used.
        with self._connect() as session:
            session.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (self._name,),
            )
            self._drop_publication(session)
        self._open = False

    # Opening.

    def _connect(self) -> psycopg.Connection[TupleRow]:
        session = psycopg.connect(self._dsn, autocommit=True)
        try:
            session.execute(_SESSION)
        except BaseException:
            session.close()
            raise
        return session

    def _check_server(self, session: psycopg.Connection[TupleRow]) -> None:
        if session.info.server_version < 150_000:
            raise WitnessError(
                "PostgreSQL is older than 15, which brought column lists: upgrade it"
            )
        [(level, role, may_replicate)] = session.execute(
            "SELECT current_setting('wal_level'), rolname, rolsuper OR rolreplication"
            " FROM pg_roles WHERE rolname = current_user"
        ).fetchall()
        if level != "logical":
            raise WitnessError(
                f"wal_level is {level}: set wal_level = logical and restart the server"
            )
        if not may_replicate:
            raise WitnessError(
                f'role "{role}" may not replicate: ALTER ROLE "{role}" REPLICATION, or use one'
                " that may"
            )
        left_over = session.execute(
            "SELECT 'slot' FROM pg_replication_slots WHERE slot_name = %(name)s"
            " UNION ALL SELECT 'publication' FROM pg_publication WHERE pubname = %(name)s",
            {"name": self._name},
        ).fetchone()
        if left_over is not None:
            raise WitnessError(
                f"{left_over[0]} {self._name} exists: another run uses this database, or a killed"
                f" one left it; if so, SELECT pg_drop_replication_slot('{self._name}') and"
                f" DROP PUBLICATION {self._name}"
            )

    def _check_table(self, session: psycopg.Connection[TupleRow], one: Watched) -> None:
        """Refuse what PostgreSQL would only refuse later, in the system's own UPDATE or DELETE."""
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
        self._toastable[one.table] = frozenset(toastable) & frozenset(one.columns)

    def _create(self, session: psycopg.Connection[TupleRow]) -> None:
        # The publication comes first: decoding looks it up in the catalog as it was at each
        # change, so a slot that is older than its publication cannot be read.
        tables = sql.SQL(", ").join(
            sql.SQL("TABLE {} ({})").format(
                sql.Identifier(*one.table.split(".", 1)),
                sql.SQL(", ").join(map(sql.Identifier, one.columns)),
            )
            for one in self._watched.values()
        )
        try:
            session.execute(
                sql.SQL(
                    "CREATE PUBLICATION {} FOR {} WITH (publish_via_partition_root = true)"
                ).format(sql.Identifier(self._name), tables)
            )
        except psycopg.errors.InsufficientPrivilege as error:
            raise WitnessError(
                f"cannot publish the watched tables ({error.diag.message_primary}): use their"
                " owner, with CREATE on the database, or a superuser"
            ) from error
        try:
            self._create_slot(session)
        except BaseException:
            self._drop_publication(session)
            raise

    def _create_slot(self, session: psycopg.Connection[TupleRow]) -> None:
        milliseconds = _SLOT_TIMEOUT // timedelta(milliseconds=1)
        session.execute("SELECT set_config('statement_timeout', %s, false)", (str(milliseconds),))
        try:
            session.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (self._name,)
            )
        except psycopg.errors.QueryCanceled as error:
            raise WitnessError(
                f"slot {self._name} was not created within {_SLOT_TIMEOUT.seconds} s: it waits for"
                " every open transaction that has written; end them (pg_stat_activity)"
            ) from error
        except psycopg.errors.ConfigurationLimitExceeded as error:
            raise WitnessError(
                "all replication slots are in use: raise max_replication_slots, or drop one"
            ) from error
        session.execute("SELECT set_config('statement_timeout', '0', false)")

    def _drop_publication(self, session: psycopg.Connection[TupleRow]) -> None:
        session.execute(sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(self._name)))

    # Reading.

    def _take(self, message: pgoutput.Message) -> None:
        match message:
            case pgoutput.Begin():
                self._begun = message
                self._events = []
            case pgoutput.Commit():
                self._commit(message)
            case pgoutput.Relation():
                self._relate(message)
            # A server that crashed forgets how far its slot was and sends transactions again.
            # Commit LSNs only grow within one timeline, and a slot never leaves its timeline.
            case _ if self._begun is None or self._begun.commit_lsn <= self._seen:
                pass
            case pgoutput.Insert():
                self._written(message.relation, None, message.new)
            case pgoutput.Update():
                watched, _ = self._relations[message.relation]
                if watched.key is None:
                    raise WitnessError(
                        f"a row of {watched.table}, an append-only table, was updated"
                    )
                self._written(message.relation, message.old, message.new)
            case pgoutput.Delete():
                self._deleted(message.relation, message.old)
            case pgoutput.Truncate():
                for relation in message.relations:
                    watched, _ = self._relations[relation]
                    if watched.key is not None:
                        raise WitnessError(
                            f"{watched.table} was truncated: its tasks are gone without a trace"
                        )

    def _commit(self, message: pgoutput.Commit) -> None:
        begun, self._begun = self._begun, None
        if begun is None:
            raise WitnessError(f"slot {self._name} sent a commit without its begin")
        if begun.commit_lsn <= self._seen:
            return
        self._seen = begun.commit_lsn
        if not self._events:
            return
        self._ready.append(
            Commit(
                self.next,
                begun.at,
                begun.xid,
                tuple(event for event in self._events if isinstance(event, Change)),
                tuple(event for event in self._events if isinstance(event, Ended)),
                tuple(event for event in self._events if isinstance(event, Effect)),
            )
        )
        self._lsns.append(begun.commit_lsn)

    def _relate(self, message: pgoutput.Relation) -> None:
        watched = self._watched.get(f"{message.schema}.{message.table}")
        if watched is None:
            return  # a partition: it is described too, but its rows come as its root's
        if missing := set(watched.columns) - set(message.columns):
            raise WitnessError(
                f"{', '.join(sorted(missing))} of {watched.table} cannot be published: it is a"
                " generated column, or was dropped"
            )
        self._relations[message.oid] = watched, message.columns

    def _written(self, relation: int, old: pgoutput.Values | None, new: pgoutput.Values) -> None:
        watched, columns = self._relations[relation]
        key = watched.key
        if key is None:
            self._events.append(_event(watched, self._whole(watched, columns, new, None)))
            return
        at = columns.index(key)
        now = _present(watched, new[at])
        # The old image is there if the replica identity changed; usually it did not.
        before = now if old is None else _present(watched, old[at])
        row = self._whole(watched, columns, new, before)
        if before != now:
            self._events.append(Change(int(before), None))
            self._long.pop((watched.table, before), None)
        self._remember(watched, now, row)
        self._events.append(_event(watched, row))

    def _deleted(self, relation: int, old: pgoutput.Values) -> None:
        watched, columns = self._relations[relation]
        if watched.key is None:
            return  # a pruned log
        gone = _present(watched, old[columns.index(watched.key)])
        self._events.append(Change(int(gone), None))
        self._long.pop((watched.table, gone), None)

    def _whole(
        self,
        watched: Watched,
        columns: tuple[str, ...],
        values: pgoutput.Values,
        before: str | None,
    ) -> dict[str, str | None]:
        """The row with values that an update left alone filled in from the row's previous image.

        An update does not send a value that is stored out of line and that it did not change. To
        be out of line the value had to be written by an earlier insert or update of this row,
        which sent it in full, and which this witness took before, in commit order, unless it
        opened later; and it had to be long. So remembering each row's long values is enough. (A
        type whose text is shorter than its stored form could slip below _SHORT, but only in a row
        with dozens of such columns, since the largest values are moved out first. Then, as for a
        row older than the witness, the value is missing here: an error, never a wrong value.)
        """
        row: dict[str, str | None] = {}
        for column, value in zip(columns, values, strict=True):
            if isinstance(value, pgoutput.Unchanged):
                known = {} if before is None else self._long.get((watched.table, before), {})
                if column not in known:
                    raise WitnessError(
                        f"{watched.table}.{column} of row {before} was written before the witness"
                        " opened, and its value is not in the log: open the witness before the"
                        " first task, or on empty tables"
                    )
                row[column] = known[column]
            else:
                row[column] = value
        return row

    def _learn(self, session: psycopg.Connection[TupleRow], watched: Watched, key: str) -> None:
        """Remember the long values of all rows, in the text in which the log would send them."""
        columns = sorted(self._toastable[watched.table])
        text = sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END")
        query = sql.SQL("SELECT {} FROM {}").format(
            sql.SQL(", ").join(text.format(sql.Identifier(one)) for one in [key, *columns]),
            sql.Identifier(*watched.table.split(".", 1)),
        )
        for number, *values in session.execute(query):
            self._remember(watched, number, dict(zip(columns, values, strict=True)))

    def _remember(self, watched: Watched, key: str, row: Mapping[str, str | None]) -> None:
        long = {}
        for column in self._toastable[watched.table]:
            value = row[column]
            # Characters beyond ASCII take up to four bytes.
            if value is not None and (len(value) > _SHORT or not value.isascii()):
                long[column] = value
        if long:
            self._long[watched.table, key] = long
        else:
            self._long.pop((watched.table, key), None)


def _event(watched: Watched, row: Mapping[str, str | None]) -> Change | Ended | Effect:
    event = watched.read(row)
    if isinstance(event, Row) is (watched.key is None):
        raise WitnessError(
            f"the reader of {watched.table} gave {type(event).__name__}: a table with a key holds"
            " tasks (Row), one without does not"
        )
    return Change(event.task, event) if isinstance(event, Row) else event


def _present(watched: Watched, key: str | pgoutput.Unchanged | None) -> str:
    if not isinstance(key, str):
        raise WitnessError(f"a change of {watched.table} came without its key {watched.key}")
    return key


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097  # the calendar repeats
# As PostgreSQL stores them, which counts from the year 2000.
_INFINITE = {
    "infinity": 2**63 - 1 + 946_684_800_000_000,
    "-infinity": -(2**63) + 946_684_800_000_000,
}


def micros(text: str | None) -> int | None:
    """PostgreSQL's ISO text of a timestamp, as whole microseconds since the Unix epoch.

    Text without an offset is taken as UTC. Infinity becomes a number larger than any timestamp's,
    minus infinity a smaller one. Raises ValueError if it is not a timestamp.
    """
    if text is None:
        return None
    if text in _INFINITE:
        return _INFINITE[text]
    days = 0
    if text[4:5] != "-" or text.endswith(" BC"):
        # Beyond Python's years 1 to 9999: read the same day of a year within, whole cycles away.
        year, rest = text.split("-", 1)
        number = 1 - int(year) if rest.endswith(" BC") else int(year)
        cycles, within = divmod(number, _CYCLE_YEARS)
        text = f"{within + _CYCLE_YEARS:04}-{rest.removesuffix(' BC')}"
        days = (cycles - 1) * _CYCLE_DAYS
    read = datetime.fromisoformat(text)
    if read.tzinfo is None:
        read = read.replace(tzinfo=UTC)
    since = read - _EPOCH
    return ((since.days + days) * 86_400 + since.seconds) * 1_000_000 + since.microseconds
