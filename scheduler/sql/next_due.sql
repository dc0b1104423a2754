-- In how many seconds the earliest waiting task of these kinds is due; null if none waits.
--
-- For an idle worker to sleep just so long. Tasks enqueued after this look announce themselves by a
-- notification; should that be lost, the worker's poll finds them. A kind at its limit does not
-- count, nor does one whose limit this worker does not know of: they would keep it awake for what it
-- may not have.
select extract(epoch from min(first.next_run_at) - scheduler.now())::double precision
from unnest(%(kinds)s::text[]) as served (kind)
left join scheduler.kind_limits as limited on limited.kind = served.kind
cross join generate_series(0, 3) as level (priority)
cross join lateral (
    select next_run_at
    from scheduler.tasks
    where status = 'pending' and kind = served.kind and priority = level.priority
    order by next_run_at, id
    limit 1
) as first
where limited.kind is null
   or limited.kind = any(%(limited)s::text[]) and limited.max_running > (
       select count(*) from scheduler.tasks as held
       where held.status = 'running' and held.kind = limited.kind)
