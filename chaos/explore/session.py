"""One connection of an actor, with a gate in it: what the client sends waits until it is granted.

The gate sits on the wire, so the code behind it is unmodified, whatever driver or pool it uses.

Execute and commit are two steps even in autocommit mode. In the extended protocol the client sends
`Execute` and `Sync` together, and it is the Sync that commits: the gate sends a Flush in its place
and keeps the Sync for the next step. In the simple protocol the server commits by itself, so the
gate puts the statement between a BEGIN and a COMMIT of its own. The client is told nothing before
both are done: it sees exactly the answers that it would have seen. Several statements in one
message are one step, which commits if the last of them does.
"""

from __future__ import annotations

import socket
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal

from chaos.explore import wire
from chaos.explore.errors import ExplorerError

Kind = Literal["statement", "commit", "rollback", "close", "pass"]


@dataclass(slots=True)
class Part:
    """What is sent to the server at once, and how the answer ends. `pass` needs no grant."""

    kind: Kind
    sql: str
    send: bytes
    until: Literal["Z", "C"]  # ReadyForQuery, or the end of one Execute
    begin: bool = False  # the gate's own BEGIN goes before it
    own: bool = False  # the statement is the gate's: the client is not told of its completion
    waited: bool = False  # for a lock
    tags: list[str] = field(default_factory=list)
    rows: int = 0
    sqlstate: str = ""


class Session:
    """A client's socket, a server's socket and what is known of the protocol between them."""

    def __init__(self, actor: str, client: socket.socket, server: socket.socket) -> None:
        self.actor = actor
        self.client = client
        self.server = server
        self.pid = 0
        self.opening = True
        self.deadlock_checked = False  # of the present wait: the server told us
        self.sent: Part | None = None  # what the server is working on
        self.done: Part | None = None  # what it has finished, until somebody takes note
        self.deliverable = False
        self.client_gone = False
        self.server_gone = False
        self.withheld = False  # whether what follows the present statement is not sent for now
        self._parked: Part | None = None
        self._inbox: deque[wire.Message] = deque()
        self._outbox = bytearray()
        self._from_client = bytearray()
        self._from_server = bytearray()
        self._status = "I"
        self._implicit = False  # the next Sync commits something
        self._owed = ""  # the gate's own COMMIT or ROLLBACK
        self._skipping = False  # after an error the server skips to the next Sync
        self._begin_pending = False
        self._statements: dict[str, str] = {}
        self._portals: dict[str, str] = {}

    # What the stage asks and does.

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open, one of the gate's included."""
        return self._status != "I" or self._implicit or bool(self._owed)

    def parked(self) -> Part | None:
        """The next part that the client wants done, if it is complete."""
        something = self._parked is None and (self._inbox or self._owed)
        if something and self.sent is None and not self.server_gone:
            self._parked = self._next()
        return self._parked

    @property
    def passes(self) -> bool:
        """Whether that needs no grant."""
        part = self.parked()
        return part is not None and part.kind == "pass"

    def grant(self) -> None:
        """Send the parked part to the server."""
        part = self._parked
        assert part is not None
        self._parked, self.sent, self.deadlock_checked = None, part, False
        self._begin_pending = part.begin
        if part.kind == "close":
            self.cut()
        else:
            self.server.sendall(wire.query("BEGIN") + part.send if part.begin else part.send)

    def deliver(self) -> None:
        """Give the client the answers it is due."""
        self.deliverable = False
        answers, self._outbox = bytes(self._outbox), bytearray()
        if not self.client_gone:
            try:
                self.client.sendall(answers)
            except (BrokenPipeError, ConnectionResetError):
                self.client_gone = True
            if self.server_gone:
                self.hang_up()

    def cut(self) -> None:
        """End the connection to the server: it sees the end of file when it reads next."""
        if not self.server_gone:
            with suppress(
                OSError
            ):  # it has ended the connection by itself, and nobody read that yet
                self.server.shutdown(socket.SHUT_WR)

    def hang_up(self) -> None:
        """End the connection to the client."""
        if not self.client_gone:
            self.client_gone = True
            with suppress(OSError):  # it was quicker, as above
                self.client.shutdown(socket.SHUT_RDWR)

    def send_rest(self) -> None:
        """Send everything that the client has sent, as if no gate had been there."""
        part = self._parked
        owed = "COMMIT" if self.sent is not None and self.sent.begin else self._owed
        if owed:
            self.server.sendall(wire.query(owed))
        elif part is not None:
            # Without the gate's BEGIN a simple query commits by itself; without its Flush, an
            # Execute is followed by the client's own Sync.
            self.server.sendall(part.send.removesuffix(wire.FLUSH) if not part.begin else part.send)
        self._parked = None
        self.server.sendall(b"".join(message.raw for message in self._inbox))
        self._inbox.clear()

    def send_withheld(self) -> None:
        """Send what follows the statement, and end the connection."""
        self.withheld = False
        self.send_rest()
        self.cut()

    def housekeeping(self, sql: str) -> None:
        """Run the gate's own statement on an idle session; the client does not hear of it."""
        if self.sent is not None:
            raise ExplorerError(
                f"actor {self.actor} ended without waiting for the answer to its last statement:"
                f" {wire.title(self.sent.sql)}"
            )
        part = Part("pass", sql, wire.query(sql), "Z", own=True)
        self.sent = part
        self.server.sendall(part.send)

    def close(self) -> None:
        """Close both sockets."""
        self.client.close()
        self.server.close()

    # What arrives.

    def client_sent(self, data: bytes) -> None:
        """Take in bytes from the client; none mean that it has closed the connection."""
        if not data:
            self.client_gone = True
            busy = self._inbox or self._parked is not None or self.sent is not None
            if not busy and not self.withheld:
                self.cut()
            return
        if self.opening:
            self.server.sendall(data)
            return
        self._from_client += data
        self._inbox += wire.take(self._from_client)

    def server_sent(self, data: bytes) -> None:
        """Take in bytes from the server; none mean that the session has ended."""
        if not data:
            self.server_gone = True
            self.opening = False
            if self.sent is not None:
                self.done, self.sent = self.sent, None
            self._parked = None
            self.deliverable = True
            return
        self._from_server += data
        for message in wire.take(self._from_server):
            if self.opening:
                self._opened(message)
            else:
                self._answer(message)

    def _opened(self, message: wire.Message) -> None:
        if message.type == "K":
            self.pid = int.from_bytes(message.body[:4])
        if message.type != "N":
            self._outbox += message.raw
        if message.type in "REZ":
            self.deliver()
        if message.type == "Z":
            self.opening = False

    def _answer(self, message: wire.Message) -> None:
        part = self.sent
        if message.type in "NAS":
            if message.type == "N" and wire.fields(message).get("V") == "LOG":
                # Ours: the session asked to be told of its own lock waits.
                text = wire.fields(message).get("M", "")
                self.deadlock_checked = "still waiting" in text
            else:
                self._outbox += message.raw
            return
        if message.type in "GHW":
            raise ExplorerError(
                f"actor {self.actor} uses COPY, which the explorer does not take apart:"
                " use INSERT or SELECT instead"
            )
        if self._begin_pending:
            self._begin_pending = message.type != "Z"
            return
        if part is None:  # the answer to what was flushed, or an unasked-for end: FATAL
            self._outbox += message.raw
            self.deliverable = True
            return
        ends = False
        if message.type == "D":
            part.rows += 1
        elif message.type in "CIs":
            ends = part.until == "C"
            if message.type == "C":
                part.tags.append(tag := wire.strings(message.body, 1)[0])
                self._tagged(tag)
        elif message.type == "E":
            part.sqlstate = wire.fields(message).get("C", "?")
            if part.until == "C":
                ends = True
                self._skipping, self._implicit = True, False
                if self._status == "T":
                    self._status = "E"
        elif message.type == "Z":
            self._ready(message, part)
            return
        if not (part.own and message.type == "C"):
            self._outbox += message.raw
        if ends:
            self._finished(part)

    def _tagged(self, tag: str) -> None:
        if tag == "BEGIN":
            self._status, self._implicit = "T", False
        elif tag in ("COMMIT", "ROLLBACK"):
            self._status, self._implicit = "I", False

    def _ready(self, message: wire.Message, part: Part) -> None:
        status = chr(message.body[0])
        self._skipping = self._implicit = False
        if part.begin and status != "I":
            self._owed = "COMMIT" if status == "T" else "ROLLBACK"
            self._finished(part)
            return
        self._status, self._owed = status, ""
        if part.own and part.sql not in ("COMMIT", "ROLLBACK"):
            self._outbox.clear()
            self._finished(part)
            return
        self._outbox += message.raw
        self.deliverable = True
        self._finished(part)

    def _finished(self, part: Part) -> None:
        self.done, self.sent = part, None

    # What the client wants next.

    def _next(self) -> Part | None:
        if self._owed == "COMMIT":
            return Part("commit", "COMMIT", wire.query("COMMIT"), "Z", own=True)
        if self._owed == "ROLLBACK":
            return Part("pass", "ROLLBACK", wire.query("ROLLBACK"), "Z", own=True)
        ends = next((n for n, m in enumerate(self._inbox) if m.type in "QESXH"), None)
        if ends is None:
            return None
        messages = [self._inbox.popleft() for _ in range(ends + 1)]
        raw = b"".join(message.raw for message in messages)
        last = messages[-1]
        for message in messages:
            self._remember(message)
        if last.type == "X":
            return Part("close" if self.in_transaction else "pass", "close", raw, "Z")
        if last.type == "Q":
            return self._simple(wire.strings(last.body, 1)[0], raw)
        if last.type == "S":
            kind: Kind = "commit" if self._implicit else "pass"
            return Part(kind, "commit", raw, "Z")
        if last.type == "H":
            self.server.sendall(raw)  # no message says that all is flushed
            self.deliverable = True
            return self._next()
        if self._skipping:
            return self._next()  # the server would throw this Execute away
        return self._execute(self._portals.get(wire.strings(last.body, 1)[0], ""), raw)

    def _simple(self, sql: str, raw: bytes) -> Part:
        does = wire.does(sql)
        if wire.begins_first(sql) and not wire.commits_last(sql):
            return Part("statement", sql, raw, "Z")  # and the transaction is the actor's own
        if self._status != "I":
            return Part("commit" if wire.commits_last(sql) else does, sql, raw, "Z")
        if does != "statement":
            return Part("pass", sql, raw, "Z")  # begins, or ends what is not open
        return Part("statement", sql, raw, "Z", begin=True)

    def _execute(self, sql: str, raw: bytes) -> Part:
        does = wire.does(sql)
        implicit = self._status == "I" and does == "statement"
        if not implicit and self._inbox and self._inbox[0].type == "S":
            return Part(does, sql, raw + self._inbox.popleft().raw, "Z")
        self._implicit = self._implicit or implicit
        return Part(does, sql, raw + wire.FLUSH, "C")

    def _remember(self, message: wire.Message) -> None:
        if message.type == "P":
            name, sql = wire.strings(message.body, 2)
            self._statements[name] = sql
        elif message.type == "B":
            portal, name = wire.strings(message.body, 2)
            self._portals[portal] = self._statements.get(name, "")
