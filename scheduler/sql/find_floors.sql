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
-- Nobody waits for a row that another has locked, be it for long: the floor is as good if it is not
-- stored. Only the first look at a level may wait for another first look, which commits by itself.
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
    select stored.kind, stored.priority, stored.used,
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
mine as materialized (
    select found.kind, found.priority, found.next_run_at, found.id
    from found
    join scheduler.claim_floors as floor
      on floor.kind = found.kind and floor.priority = found.priority
    for update of floor skip locked
),
changed as (
    update scheduler.claim_floors as floor
    set next_run_at = mine.next_run_at, id = mine.id, found_at = scheduler.now()
    from mine
    where floor.kind = mine.kind and floor.priority = mine.priority
),
added as (
    insert into scheduler.claim_floors (kind, priority, next_run_at, id, found_at)
    select kind, priority, next_run_at, id, scheduler.now()
    from found
    where not used
    order by kind, priority
    on conflict (kind, priority) do nothing
)
select kind, priority, next_run_at, id from stored where fresh
union all
select kind, priority, next_run_at, id from found
