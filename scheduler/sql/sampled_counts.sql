-- About how many tasks of each kind wait, are due and are dead: those on a share of the table's pages, in
-- proportion.
--
-- For kinds with more than anybody wants to count. As many pages are read whatever the table's size, and
-- each time the same ones as far as they are there still (REPEATABLE), so that a number that has grown
-- has so because there is more, not because other pages were drawn. The planner's own statistics are
-- of no use here: they may be older than the queue.
with sample as materialized (
    select kind, status, next_run_at
    from scheduler.tasks
        tablesample system (least(100, 100.0 * %(pages)s / greatest(1,
            pg_relation_size('scheduler.tasks') / current_setting('block_size')::bigint)))
        repeatable (1)
    where status in ('pending', 'dead')
)
select kind,
    (count(*) filter (where status = 'pending') * size.times)::bigint as pending,
    (count(*) filter (where status = 'pending' and next_run_at <= scheduler.now()) * size.times)::bigint
        as due,
    (count(*) filter (where status = 'dead') * size.times)::bigint as dead
from sample
cross join (
    select greatest(1.0, 1.0 * pg_relation_size('scheduler.tasks')
        / current_setting('block_size')::bigint / %(pages)s) as times
) as size
group by kind, size.times
