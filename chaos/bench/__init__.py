"""Measures how fast tasks are claimed and finished, and says beside it what the database allows.

How a drain is measured (`chaos bench contention`):

- A PostgreSQL server of the bench's own, on this machine, with durable commits (`fsync`,
  `synchronous_commit` and `full_page_writes` on) and autovacuum on. Its settings are in the result.
- N no-op tasks are enqueued through the public API, in a template of which every drain gets a fresh
  copy, vacuumed and analyzed, after a checkpoint. All systems start from the same bytes.
- W processes drain it. Each is a whole worker with its own connections: renewing, listening,
  reclaiming and logging as in production. They are all connected before the first may claim.
  Workers and server share the machine's cores, and nothing is pinned.
- The time is the database's: from the first `claimed_at` to the last `finished_at` in the run log.
  Start-up and shutdown are outside of it; the tail, when workers find nothing more, is inside.
- A claim's latency is taken in the worker process, around the call that claims: the statement, its
  round trip, and the making of the attempts. The same statement writes the completions of attempts
  that ended before, so their cost is in it. Claims that found nothing while tasks were still open
  are counted as empty.
- Repeats are interleaved: every cell once, then every cell again. A figure is the median of its
  repeats, with the least and the greatest beside it. No repeat is dropped, none is a warm-up.
- After every drain the tables are checked: each task completed once, with one `completed` row in
  the run log and no others than of attempts that were given back before they began, and each
  handler ran once. A drain that is wrong has no figure: the bench ends with exit code 1.

The limit is pgbench (C) with the same SQL, prepared and planned as ours is, at the same number of
clients and the same batch, on the same copies, interleaved with ours. It is measured in two ways:

- `pgbench-one-commit` runs a worker's own statement, `complete_and_claim.sql`: one statement and
  one commit a cycle, which completes the batch of the cycle before and claims the next. A share of
  it is a share of what the database allows for what our workers send.
- `pgbench` runs the statements of which that is made apart, `claim.sql` and then `complete.sql`:
  two statements and two commits a cycle. Beside it the saved commit shows.

What neither does, and a worker does: renew, listen, reclaim, run handlers, parse payloads. What
they do and a worker does not: pgbench can keep one row only, so ids, tokens and payloads are put
into arrays by an aggregate around each statement. With `default` settings a claim takes what a
worker runs in a moment, 500 tasks at most: pgbench beside it always claims 500.

What is not measured: a network (all is on loopback), a database larger than memory, several
databases, other load on the same server, handlers that do more than write one row, payloads larger
than a few bytes. The bench's own looks at the server (`pg_stat_activity`, ten times a second) run
during every drain, ours and pgbench's alike, and their cost is part of the server's CPU time.
"""


class BenchError(Exception):
    """The bench could not measure: a process died, or a drain did not end."""


class WrongDrainError(BenchError):
    """A drain was fast but wrong: what the tables say of it is not what must be."""
