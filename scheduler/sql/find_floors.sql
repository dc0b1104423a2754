-- Where the earliest waiting task of each level of these kinds was, at most `age` ago.
--
-- For claims to begin there: scheduler/floors.py says why, and what a level is. To find it passes all
-- entries of the index that are dead and still there. So whoever looks stores what was found, and whoever
-- finds something fresh there does not look.
--
-- Several may look at once, and it does not matter whose row is written last: place and time are of one
-- statement, whose time is from before its snapshot. So nobody is told of a place that is older than its
-- time says. A time in the future is not fresh: after a failover this clock may be behind the one that
-- wrote it.
--
-- Rows are written in one order, so nobody waits in a ring; and a wait is for a statement that commits by
-- itself, even if its worker has been stopped.
--
-- No place is later than `margin` ago, so what becomes due from then on is above it, also if its
-- transaction has yet to commit. A level where nothing ever waited has no row, and is claimed from its
-- start.
with stored as materialized (
    select served.kind, each.priority, floor.next_run_at, floor.id, floor.kind is not null as used,
        coalesce(
            floor.found_at > scheduler.now() - %(age)s::interval
            and floor.found_at <= scheduler.now(), false) as fresh
    from unnest(%(kinds)s::text[]) as served (kind)
    cross join generate_series(0, 3) as each (priority)
    left join scheduler.claim_floors as floor
      on floor.kind = served.kind and floor.priority = each.priority
),
found as materialized (
    select stored.kind, stored.priority,
        least(first.next_run_at, scheduler.now() - %(margin)s::interval) as next_run_at,
        case when first.next_run_at < scheduler.now() - %(margin)s::interval then first.id else 0 end
            as id
    from stored
    left join lateral (
        select next_run_at, id
        from scheduler.tasks
        where status = 'pending' and kind = stored.kind and priority = stored.priority
        order by next_run_at, id
        limit 1
    ) as first on true
    where not stored.fresh and (stored.used or first.id is not null)
),
saved as (
    insert into scheduler.claim_floors (kind, priority, next_run_at, id, found_at)
    select kind, priority, next_run_at, id, scheduler.now() from found order by kind, priority
    on conflict (kind, priority) do update
    set next_run_at = excluded.next_run_at, id = excluded.id, found_at = excluded.found_at
)
select kind, priority, next_run_at, id from stored where fresh
union all
select kind, priority, next_run_at, id from found
