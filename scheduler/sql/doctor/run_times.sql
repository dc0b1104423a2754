-- How long the completed attempts of the last day ran, by kind: how many, and the 99th percentile.
select kind, count(*),
    (percentile_cont(0.99) within group (
        order by extract(epoch from log.finished_at - log.claimed_at)))::double precision
from scheduler.run_log as log
join scheduler.tasks as task on task.id = log.task_id
where log.outcome = 'completed'
  and log.finished_at > scheduler.now() - interval '1 day'
  and task.kind = any(%(kinds)s)
group by kind
order by kind
