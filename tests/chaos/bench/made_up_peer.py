"""A queue that nobody uses, for the yardstick of `chaos bench peers`; with bugs on demand."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psycopg

from chaos.bench.peers.peer import DEFAULT, Check, Options, Peer, Setting
from chaos.bench.peers.program import enqueueing, gate, main
from chaos.bench.peers.tally import ran

COMMAND = [sys.executable, str(Path(__file__))]
CLAIM = """update jobs set state = %s where id =
    (select id from jobs where state = 'open' order by id limit 1 for update skip locked)
    returning id"""


def made_up(bug: str = "", most: int | None = None) -> Peer:
    """It, with this bug."""
    return Peer(
        name="made-up",
        runtime="python",
        program="",
        packages=("leaseproof",),
        settings=(Setting(DEFAULT, {"bug": bug}, "as it comes", most),),
        open="select exists (select from jobs where state = 'open')",
        checks=(
            Check(
                "select abs(count(*) - %(tasks)s) from jobs where state = 'done'",
                "{n} jobs are not done",
            ),
        ),
    )


def prepare(url: str, tasks: int, options: Options) -> None:
    """Install and enqueue."""
    if options["bug"] == "cannot be installed":
        sys.exit("no such luck")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create table jobs (id integer, state text not null default 'open')")
        sys.stdout.write("have a nice day\n")  # as systems do
        with nullcontext() if options["bug"] == "has no clock" else enqueueing():
            connection.execute("insert into jobs select generate_series(1, %s)", [tasks])
        sys.stdout.write("good bye\n")


def work(url: str, options: Any) -> None:
    """One worker."""
    bug = options["bug"]
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    gate()
    with psycopg.connect(url, autocommit=True) as connection:
        while not stopped:
            claimed = connection.execute(CLAIM, ["failed" if bug == "fails" else "done"]).fetchone()
            if claimed is None:
                time.sleep(0.01)
                continue
            ran()
            if bug == "runs twice" and claimed[0] == 7:
                ran()
            if bug == "loses" and claimed[0] == 7:
                connection.execute("update jobs set state = 'open' where id = 7")
                while not stopped:
                    time.sleep(0.01)
            if bug == "dies" and claimed[0] == 7:
                sys.exit("the seventh was too much")


if __name__ == "__main__":
    main(prepare, work)
