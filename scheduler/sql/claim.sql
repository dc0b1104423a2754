-- Claim at most `limit` due tasks of the given kinds for one owner.
--
-- Why two workers never get the same row: FOR UPDATE locks each row before it is changed, and SKIP
-- LOCKED passes over rows that another claim is changing. A row whose claim committed between our
-- snapshot and our lock is checked again against the WHERE clause in its newest version (READ
-- COMMITTED) and drops out, because it is no longer pending.
--
-- Why it never takes more than `limit`: the CTE is materialized, so it runs exactly once. As a plain
-- subquery (`id IN (SELECT ... LIMIT n)`) the planner may run it again for each outer row, and with
-- SKIP LOCKED each run finds other rows.
--
-- `attempts < max_attempts` repeats a constraint on purpose: a row that the UPDATE's constraints
-- would refuse must not abort the claim of all the others. The attempt is counted here, so an
-- attempt that kills its worker is counted too. The token only grows; with the owner, which carries
-- a nonce of this very call, it fences every later write.
--
-- The lease starts at this statement's time, which is later than the moment before it was sent,
-- from which the worker counts its own belief: the worker always gives up first.
with due as materialized (
    select id
    from scheduler.tasks
    where status = 'pending'
      and next_run_at <= scheduler.now()
      and kind = any(%(kinds)s::text[])
      and attempts < max_attempts
    order by next_run_at, id
    limit %(limit)s
    for update skip locked
)
update scheduler.tasks as task
set status = 'running',
    attempts = task.attempts + 1,
    lease_token = task.lease_token + 1,
    lease_owner = %(owner)s,
    claimed_at = scheduler.now(),
    lease_expires_at = scheduler.now()
        + (%(leases)s::interval[])[array_position(%(kinds)s::text[], task.kind)]
from due
where task.id = due.id
returning
    task.id, task.lease_token, task.kind, task.payload::text, task.attempts, task.max_attempts,
    task.next_run_at
