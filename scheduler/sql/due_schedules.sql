-- A page of the schedules that have due times to deal with, in the order of (next_at, name).
--
-- With each, in how many seconds the first of the others has one; one row without a name if there are
-- none.
--
-- Left out are those with an occurrence that waits or runs, or with a dead one that stops them. This
-- takes no lock: plan_occurrences checks whatever another planner may have changed since. What it
-- does not check cannot come about in between: only a planner makes occurrences, and of the others a
-- requeued one can become live, which is said there.
select following.seconds, due.name, due.next_at, due.rule, due.timezone, due.missed, scheduler.now()
from (
    select extract(epoch from min(next_at) - scheduler.now())::double precision as seconds
    from scheduler.schedules
    where declared and not paused and next_at > scheduler.now()
) as following
left join lateral (
    select name, rule, timezone, missed, next_at
    from scheduler.schedules as schedule
    where declared and not paused and next_at <= scheduler.now()
      and (next_at, name) > (%(after_time)s::timestamptz, %(after_name)s::text)
      and not exists (
          select from scheduler.tasks as task
          where task.schedule = schedule.name
            and task.status in ('pending', 'running', 'dead')
            and (task.status <> 'dead' or schedule.on_dead = 'stop'))
    order by next_at, name
    limit %(limit)s
) as due on true
order by due.next_at, due.name
