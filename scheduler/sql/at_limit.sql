-- Which of these kinds have tasks due and as many leases as their limit allows.
--
-- For the metrics: asked by a worker with limited kinds after a claim that found nothing, so what it
-- says is why there was nothing. It decides nothing, and may be out of date by the time it arrives.
select limited.kind
from scheduler.kind_limits as limited
where limited.kind = any(%(limited)s::text[])
  and limited.max_running <= (
      select count(*) from scheduler.tasks as held
      where held.status = 'running' and held.kind = limited.kind)
  and exists (
      select from generate_series(0, 3) as level (priority)
      cross join lateral (
          select from scheduler.tasks
          where status = 'pending' and kind = limited.kind and priority = level.priority
            and next_run_at <= scheduler.now()
          limit 1
      ) as first)
order by limited.kind
