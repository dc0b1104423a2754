"""Our scheduler beside other PostgreSQL queues, measured in one run with one yardstick.

How a drain of `chaos bench peers` is measured, alike for all and for ours:

- A server of the bench's own with durable commits and autovacuum, as in every other bench. Each
  system is installed in an empty database by its own migrations, and N jobs whose handler does
  nothing are enqueued by its own call for many. Every drain gets a fresh copy of that, vacuumed and
  analyzed, after a checkpoint.
- W worker processes, each its own interpreter. They are started and have loaded their code before
  any may go on; then each connects and begins as that system's workers do in production.
- The time is from the begin of the first handler, in whichever process, until a look at the tables,
  every 20 ms, finds no job that is not done. A completion that is only in a worker's memory is not
  done yet.
- How fast each system enqueues those N jobs, from one client, is measured too, once a repeat: the
  time of its calls, without connecting. So is how fast one client enqueues 1,000 (or N, if that is
  less) into an empty database by its call for one job, each when the one before it has returned;
  100 calls are made before the clock begins. Each job must be there afterwards, and each must be
  another transaction's: a call is a durable commit.
- Repeats are interleaved: every cell once, then every cell again. A figure is the median of its
  repeats, with the least and the greatest beside it. No repeat is dropped, none is a warm-up.
- After every drain the tables are checked, as far as they tell, for each job being done once; and
  the handlers of all processes together ran N times. A drain that is wrong has no figure.

Every system is measured as it comes (`default`) and with what its own documentation says for
throughput (`best`), with nothing that makes a commit or a table less durable. What that is stands
in the notes of the result. A system that takes longer gets fewer jobs; the result says how many.
Versions are pinned: those of PyPI in the extra `peers`, those of npm in
`chaos/bench/peers/npm/package-lock.json`.
"""
