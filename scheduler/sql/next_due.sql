-- In how many seconds the earliest waiting task of these queues and kinds is due; null if none waits.
--
-- For an idle worker to sleep just so long. Tasks enqueued after this look announce themselves by a
-- notification; should that be lost, the worker's poll finds them.
select extract(epoch from min(first.next_run_at) - scheduler.now())::double precision
from (
    select queue, priority
    from unnest(%(queues)s::text[]) as queue, generate_series(0, 3) as priority
) as level
cross join lateral (
    select next_run_at
    from scheduler.tasks
    where status = 'pending'
      and queue = level.queue
      and priority = level.priority
      and kind = any(%(kinds)s::text[])
    order by next_run_at, id
    limit 1
) as first
