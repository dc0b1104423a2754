-- Schedules by name: what is declared, and what is the matter with each at the moment.
--
-- Those whose name comes after `after`; null filters and a null limit mean all.
-- A dead occurrence is named only where it stops the schedule, the oldest first.
select schedule.name, schedule.application, schedule.source, schedule.kind, schedule.rule, schedule.timezone,
    schedule.missed, schedule.on_dead, schedule.declared, schedule.paused, schedule.next_at,
    last.occurrence as last_occurrence,
    (select min(id) from scheduler.tasks as task
        where task.schedule = schedule.name and task.status in ('pending', 'running')) as live_task,
    (select min(id) from scheduler.tasks as task
        where task.schedule = schedule.name and task.status = 'dead'
          and schedule.on_dead = 'stop') as dead_task
from scheduler.schedules as schedule
left join lateral (
    select occurrence
    from scheduler.tasks as task
    where task.schedule = schedule.name
    order by occurrence desc
    limit 1
) as last on true
where (%(after)s::text is null or schedule.name > %(after)s)
  and (%(name)s::text is null or schedule.name = %(name)s)
  and (%(source)s::text is null or schedule.source = %(source)s)
  and (%(kinds)s::text[] is null or schedule.kind = any(%(kinds)s))
order by schedule.name
limit %(limit)s
