-- Claim at most `limit` due tasks of the given kinds, in the given queues, for one owner.
--
-- Why two workers never get the same row: FOR UPDATE locks each row before it is changed, and SKIP
-- LOCKED passes over rows that another claim is changing. A row whose claim committed between our
-- snapshot and our lock is checked again against the WHERE clause in its newest version (READ
-- COMMITTED) and drops out, because it is no longer pending.
--
-- Why it never takes more than `limit`: each CTE is materialized, so it runs exactly once, and the
-- shares add up to at most `limit`. As a plain subquery (`id IN (SELECT ... LIMIT n)`) the planner
-- may run it again for each outer row, and with SKIP LOCKED each run finds other rows.
--
-- Order: due time, less a credit for each level of priority. `head` reads the first due rows of each
-- queue and level off the index, without locking; `share` counts how many of the best `limit` are of
-- each; `due` then locks that many of each, passing over what others hold. So an index serves every
-- level, rows that are not due cost nothing whatever their priority, and no row is locked that is
-- not taken. Under contention the shares may be a little off, never the limit; a level whose share
-- was taken by others meanwhile gets its turn at the next claim.
--
-- `attempts < max_attempts` repeats a constraint on purpose: a row that the UPDATE's constraints
-- would refuse must not abort the claim of all the others. The attempt is counted here, so an
-- attempt that kills its worker is counted too. The token only grows; with the owner, which carries
-- a nonce of this very call, it fences every later write.
--
-- The lease starts at this statement's time, which is later than the moment before it was sent,
-- from which the worker counts its own belief: the worker always gives up first.
with head as materialized (
    select level.queue, level.priority, first.next_run_at, first.id
    from (
        select queue, priority
        from unnest(%(queues)s::text[]) as queue, generate_series(0, 3) as priority
    ) as level
    cross join lateral (
        select next_run_at, id
        from scheduler.tasks
        where status = 'pending'
          and queue = level.queue
          and priority = level.priority
          and next_run_at <= scheduler.now()
          and kind = any(%(kinds)s::text[])
          and attempts < max_attempts
        order by next_run_at, id
        limit %(limit)s
    ) as first
),
share as materialized (
    select queue, priority, count(*) as size
    from (
        select queue, priority
        from head
        order by next_run_at - priority * scheduler.priority_credit(), id
        limit %(limit)s
    ) as best
    group by queue, priority
),
due as materialized (
    select taken.id
    from share
    cross join lateral (
        select id
        from scheduler.tasks
        where status = 'pending'
          and queue = share.queue
          and priority = share.priority
          and next_run_at <= scheduler.now()
          and kind = any(%(kinds)s::text[])
          and attempts < max_attempts
        order by next_run_at, id
        limit share.size
        for update skip locked
    ) as taken
)
update scheduler.tasks as task
set status = 'running',
    attempts = task.attempts + 1,
    lease_token = task.lease_token + 1,
    lease_owner = %(owner)s,
    claimed_at = scheduler.now(),
    lease_expires_at = scheduler.now()
        + (%(leases)s::interval[])[array_position(%(kinds)s::text[], task.kind)]
where task.id = any(array(select id from due)) -- an array: a join would scan the primary key
returning
    task.id, task.lease_token, task.kind, task.payload::text, task.attempts, task.max_attempts,
    task.next_run_at
