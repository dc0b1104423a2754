-- Claim at most `limit` due tasks of the given kinds for one owner.
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
-- kind and level off the index, without locking; `share` counts how many of the best `limit` are of
-- each; `due` then locks that many of each, passing over what others hold. So an index serves every
-- kind and level, rows that are not due or not ours cost nothing, and no row is locked that is not
-- taken. Under contention the shares may be a little off, never the limit; a level whose share was
-- taken by others meanwhile gets its turn at the next claim.
--
-- Nothing below a level's floor is read: earlier claims left dead entries there that vacuum may not have
-- removed. How a task that waits there is found is in scheduler/floors.py. (Where there is no floor the
-- id is null, and never looked at, since no task is due at -infinity.)
--
-- A kind whose leases are limited is served only in a transaction that began with lock_limits.sql and
-- got hold of its limit: then no other claim of the kind is under way, the leases counted here by a
-- snapshot taken after the lock include all that earlier ones gave out, and `room` is what is left.
-- Expired leases count until they are reclaimed: their holders may be running.
--
-- `attempts < max_attempts` repeats a constraint on purpose: a row that the UPDATE's constraints
-- would refuse must not abort the claim of all the others. The attempt is counted here, so an
-- attempt that kills its worker is counted too. The token only grows; with the owner, which carries
-- a nonce of this very call, it fences every later write.
--
-- The lease starts at this statement's time, which is later than the moment before it was sent,
-- from which the worker counts its own belief: the worker always gives up first.
with served as materialized (
    select wanted.kind,
        case
            when limited.kind is null then %(limit)s
            else greatest(0, limited.max_running - (
                select count(*) from scheduler.tasks as held
                where held.status = 'running' and held.kind = limited.kind))
        end as room
    from unnest(%(kinds)s::text[]) as wanted (kind)
    left join scheduler.kind_limits as limited on limited.kind = wanted.kind
    where limited.kind is null
       or limited.kind = any(nullif(current_setting('scheduler.limits', true), '')::text[])
),
level as materialized (
    select served.kind, served.room, each.priority,
        coalesce(floor.next_run_at, timestamptz '-infinity') as from_time, floor.id as from_id
    from served
    cross join generate_series(0, 3) as each (priority)
    left join unnest(
        %(floor_kinds)s::text[], %(floor_priorities)s::integer[], %(floor_times)s::timestamptz[],
        %(floor_ids)s::bigint[]
    ) as floor (kind, priority, next_run_at, id)
      on floor.kind = served.kind and floor.priority = each.priority
),
head as materialized (
    select level.kind, level.room, level.priority, first.next_run_at, first.id
    from level
    cross join lateral (
        select next_run_at, id
        from scheduler.tasks
        where status = 'pending'
          and kind = level.kind
          and priority = level.priority
          and (next_run_at, id) >= (level.from_time, level.from_id)
          and next_run_at <= scheduler.now()
          and attempts < max_attempts
        order by next_run_at, id
        limit least(level.room, %(limit)s)
    ) as first
),
share as materialized (
    select kind, priority, count(*) as size
    from (
        select kind, priority
        from (
            select *, row_number() over (partition by kind order by rank, id) as place
            from (
                select *, next_run_at - priority * scheduler.priority_credit() as rank from head
            ) as ranked
        ) as placed
        where place <= room
        order by rank, id
        limit %(limit)s
    ) as best
    group by kind, priority
),
due as materialized (
    select taken.id
    from share
    join level using (kind, priority)
    cross join lateral (
        select id
        from scheduler.tasks
        where status = 'pending'
          and kind = share.kind
          and priority = share.priority
          and (next_run_at, id) >= (level.from_time, level.from_id)
          and next_run_at <= scheduler.now()
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
    task.next_run_at, task.schedule, task.occurrence,
    extract(epoch from scheduler.now() - task.next_run_at)::double precision as late, task.priority
