-- What attempts came to in each of the last sixty minutes, or in those from `after` on; how long the
-- completed ones had waited from their due time to their claim.
--
-- The run log is only ever added to, in the order of time, so run_log_finished leads to its last hour
-- without reading what is before. Who asks again asks for what is new. A completed task keeps the due
-- time of its last attempt; waits are those of at most a hundred of each minute, since each takes a look
-- at its task.
select minute.at, coalesce(ended.completed, 0) as completed, coalesce(ended.failed, 0) as failed,
    coalesce(ended.reclaimed, 0) as reclaimed, coalesce(ended.other, 0) as other,
    waits.median::double precision as wait_seconds,
    waits.longest::double precision as longest_wait_seconds
from generate_series(
    greatest(
        %(after)s::timestamptz,
        date_bin('1 minute', scheduler.now(), 'epoch'::timestamptz) - interval '59 minutes'),
    scheduler.now(), interval '1 minute') as minute (at)
left join (
    select date_bin('1 minute', finished_at, 'epoch'::timestamptz) as at,
        count(*) filter (where outcome = 'completed') as completed,
        count(*) filter (where outcome = 'failed') as failed,
        count(*) filter (where outcome = 'reclaimed') as reclaimed,
        count(*) filter (where outcome in ('released', 'snoozed', 'cancelled')) as other
    from scheduler.run_log
    where finished_at >= greatest(
        %(after)s::timestamptz,
        date_bin('1 minute', scheduler.now(), 'epoch'::timestamptz) - interval '59 minutes')
    group by 1
) as ended on ended.at = minute.at
left join lateral (
    select percentile_cont(0.5) within group (order by wait) as median, max(wait) as longest
    from (
        select extract(epoch from run.claimed_at - task.next_run_at) as wait
        from scheduler.run_log as run
        join scheduler.tasks as task on task.id = run.task_id
        where run.finished_at >= minute.at and run.finished_at < minute.at + interval '1 minute'
          and run.outcome = 'completed'
        limit 100
    ) as sample
) as waits on ended.completed > 0
order by minute.at
