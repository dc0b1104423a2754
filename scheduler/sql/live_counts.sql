-- The live tasks by kind: waiting, due, running, dead, and how long the oldest have waited and run.
--
-- Its cost has a bound, however many tasks wait or are dead. The kinds that have waiting tasks are found by jumping
-- from one to the next in tasks_due. Of each, waiting and due ones are counted there up to a share of
-- `most`; where there are more, that share is said, and that it is no count: sampled_counts.sql tells
-- about how many there are. The oldest due one is the first of its level in tasks_due, so it is exact
-- whatever waits behind it. In a vacuumed table no row is visited for all that.
--
-- Each subselect asks for the index's own order, though any would do, so that the index is what gives
-- the first rows soonest: read off the table, they could come after all that is finished.
--
-- Dead ones are counted in the same way, in tasks_dead_kind. Those that are over otherwise are not
-- counted: there may be millions, and each count would read them all. Running ones are found by their own
-- partial index, and visited.
with recursive waiting (kind) as (
    (select kind from scheduler.tasks where status = 'pending' order by kind limit 1)
    union all
    select (
        select task.kind
        from scheduler.tasks as task
        where task.status = 'pending' and task.kind > waiting.kind
        order by task.kind
        limit 1)
    from waiting
    where waiting.kind is not null
),
died (kind) as (
    (select kind from scheduler.tasks where status = 'dead' order by kind limit 1)
    union all
    select (
        select task.kind
        from scheduler.tasks as task
        where task.status = 'dead' and task.kind > died.kind
        order by task.kind
        limit 1)
    from died
    where died.kind is not null
),
died_share as materialized (
    select greatest(1000, %(most)s / greatest(count(kind), 1)) as most from died
),
share as materialized (
    select greatest(1000, %(most)s / greatest(count(kind), 1)) as most from waiting
),
live as (
    select waiting.kind, least(pending.tasks, share.most) as pending,
        pending.tasks > share.most as pending_estimated, least(due.tasks, share.most) as due,
        due.tasks > share.most as due_estimated, oldest.due_at as oldest_due,
        0 as running, 0 as expired, null::timestamptz as oldest_claim, 0 as dead,
        false as dead_estimated
    from waiting
    cross join share
    cross join lateral (
        select count(*) as tasks
        from (
            select
            from scheduler.tasks as task
            where task.status = 'pending' and task.kind = waiting.kind
            order by task.priority, task.next_run_at, task.id
            limit share.most + 1
        ) as counted
    ) as pending
    cross join lateral (
        select count(*) as tasks
        from (
            select
            from generate_series(0, 3) as level (priority)
            cross join lateral (
                select
                from scheduler.tasks as task
                where task.status = 'pending' and task.kind = waiting.kind
                    and task.priority = level.priority and task.next_run_at <= scheduler.now()
                order by task.next_run_at, task.id
                limit share.most + 1
            ) as of_level
            limit share.most + 1
        ) as counted
    ) as due
    cross join lateral (
        select min(first.next_run_at) filter (where first.next_run_at <= scheduler.now()) as due_at
        from generate_series(0, 3) as level (priority)
        cross join lateral (
            select task.next_run_at
            from scheduler.tasks as task
            where task.status = 'pending' and task.kind = waiting.kind
                and task.priority = level.priority
            order by task.next_run_at, task.id
            limit 1
        ) as first
    ) as oldest
    where waiting.kind is not null
    union all
    select kind, 0, false, 0, false, null, count(*),
        count(*) filter (where lease_expires_at < scheduler.now()), min(claimed_at), 0,
        false
    from scheduler.tasks
    where status = 'running'
    group by kind
    union all
    select died.kind, 0, false, 0, false, null, 0, 0, null, least(dead.tasks, died_share.most),
        dead.tasks > died_share.most
    from died
    cross join died_share
    cross join lateral (
        select count(*) as tasks
        from (
            select
            from scheduler.tasks as task
            where task.status = 'dead' and task.kind = died.kind
            order by task.finished_at, task.id
            limit died_share.most + 1
        ) as counted
    ) as dead
    where died.kind is not null
)
select kind, sum(pending)::bigint as pending, bool_or(pending_estimated) as pending_estimated,
    sum(due)::bigint as due, bool_or(due_estimated) as due_estimated,
    sum(running)::bigint as running, sum(expired)::bigint as expired, sum(dead)::bigint as dead,
    bool_or(dead_estimated) as dead_estimated,
    extract(epoch from scheduler.now() - min(oldest_due))::double precision as oldest_due_seconds,
    extract(epoch from scheduler.now() - min(oldest_claim))::double precision
        as oldest_running_seconds
from live
group by kind
order by kind
