"""The history of record: what PostgreSQL committed, read from its write-ahead log in commit order.

A logical slot sees every committed change of the watched tables, whoever made it and however; a
publication's column lists keep payloads out. The witness never trusts a reply it did not get: it
peeks, and moves the slot only past what it holds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql
from psycopg.rows import TupleRow

from chaos.history import pgoutput, slot
from chaos.history.events import Change, Commit, Effect, Ended, Row
from chaos.history.watched import Watched, WitnessError

# Messages per call: bounds memory, since the server and psycopg each hold a call's whole answer.
# (A single transaction is never split: a larger one comes as one larger answer.)
_BATCH = 20_000

# PostgreSQL moves a value out of line only if it takes more than 24 bytes with its header of at
# most four (toast_tuple_find_biggest_attribute): such a text has more than 20.
_SHORT = 20

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
        session = slot.connect(self._dsn)
        try:
            slot.check_server(session, self._name)
            self._check_tables(session)
            slot.create(session, self._name, self._watched.values())
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
        session = slot.connect(self._dsn)
        try:
            self._check_tables(session)
            slot.create_slot(session, self._name)
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
        self._session = slot.connect(self._dsn)
        found = self._session.execute(
            "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", (self._name,)
        ).fetchone()
        if found is None:
            raise WitnessError(
                f"the server has no slot {self._name}: it is not the one that was witnessed so far;"
                " open a new witness on it"
            )
        if found[0] == "lost":
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
        with slot.connect(self._dsn) as session:
            slot.drop(session, self._name)
        self._open = False

    def _check_tables(self, session: psycopg.Connection[TupleRow]) -> None:
        for one in self._watched.values():
            self._toastable[one.table] = slot.check_table(session, one)

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
