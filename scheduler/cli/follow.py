"""`scheduler dead-letter export --follow`: writes letters as they come, until somebody ends it."""

from __future__ import annotations

import errno
import os
import select
import sys
import time

import psycopg

from scheduler.cli.shared import brief, checked
from scheduler.cli.terminal import OutputError, say, write
from scheduler.dead_letter_follow import Follower
from scheduler.documents import json_text, raw_payload

EVERY = 1.0  # seconds between looks
GIVE_UP = 300.0  # seconds that the database may be away


def follow_letters(follower: Follower, database: str | None) -> None:
    """Write what the follower reads. Ends at Ctrl-C; raises BrokenPipeError once nobody reads, and
    what the database says if it stays away, or is not there to begin with."""
    if sys.stdout is None:
        raise OutputError("cannot write the answer: standard output is closed")
    away_since: float | None = None
    connected = False
    try:
        while True:
            try:
                with checked(database) as connection:
                    connected = True
                    while True:
                        for letter in follower.read(connection):
                            write(json_text(raw_payload(letter)))
                        away_since = None
                        _wait(EVERY)
            except psycopg.OperationalError as error:
                now = time.monotonic()
                away_since = now if away_since is None else away_since
                if not connected or now - away_since > GIVE_UP:
                    raise
                say(f"connecting again: {brief(error)}")
            _wait(EVERY)
    except KeyboardInterrupt:
        return


def _wait(seconds: float) -> None:
    """Sleep, and find out meanwhile if nobody reads any more: no write would for as long as nothing
    dies. Raises BrokenPipeError."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)  # errors alone, which need not be asked for
    if poll.poll(seconds * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
