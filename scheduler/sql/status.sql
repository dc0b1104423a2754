-- The queue at a glance: tasks by kind and status, and how long the oldest due one has waited.
select kind, status, count(*) as count,
    extract(epoch from scheduler.now() - min(next_run_at)
        filter (where status = 'pending' and next_run_at <= scheduler.now()))::double precision
        as oldest_due_seconds
from scheduler.tasks
group by kind, status
order by kind, status
