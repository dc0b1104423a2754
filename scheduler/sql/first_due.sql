-- The place of the least due task of each level of these kinds, as it was at most `age` ago.
--
-- For claims to begin there (scheduler/floors.py). To find it passes all entries of the index that
-- vacuum has not removed yet. So whoever looks tells the others, and who finds something fresh does not
-- look. Several may look at once, for nothing: each tells what was true at its snapshot, and an older
-- look cannot overwrite what a newer one told, since the newest version of its row is checked again
-- under the row's lock, and is fresh then. Rows are written in one order, so that nobody waits in a ring.
--
-- A time in the future is not fresh: after a failover this clock may be behind the one that wrote it.
--
-- No place is later than `behind` ago, so that what is due since, and whose transaction may have yet to
-- commit, is above it. A level where nothing was ever due has no row, and a claim begins at its start.
with known as materialized (
    select served.kind, level.priority, first_due.next_run_at, first_due.id,
        first_due.kind is not null as used,
        coalesce(
            first_due.found_at > scheduler.now() - %(age)s::interval
            and first_due.found_at <= scheduler.now(), false) as fresh
    from unnest(%(kinds)s::text[]) as served (kind)
    cross join generate_series(0, 3) as level (priority)
    left join scheduler.first_due as first_due
      on first_due.kind = served.kind and first_due.priority = level.priority
),
found as materialized (
    select known.kind, known.priority,
        least(first.next_run_at, scheduler.now() - %(behind)s::interval) as next_run_at,
        case when first.next_run_at < scheduler.now() - %(behind)s::interval then first.id else 0 end
            as id
    from known
    left join lateral (
        select next_run_at, id
        from scheduler.tasks
        where status = 'pending' and kind = known.kind and priority = known.priority
        order by next_run_at, id
        limit 1
    ) as first on true
    where not known.fresh and (known.used or first.id is not null)
),
told as (
    insert into scheduler.first_due as older (kind, priority, next_run_at, id, found_at)
    select kind, priority, next_run_at, id, scheduler.now() from found order by kind, priority
    on conflict (kind, priority) do update
    set next_run_at = excluded.next_run_at, id = excluded.id, found_at = excluded.found_at
    where older.found_at <= excluded.found_at - %(age)s::interval or older.found_at > excluded.found_at
)
select kind, priority, next_run_at, id from known where fresh
union all
select kind, priority, next_run_at, id from found
