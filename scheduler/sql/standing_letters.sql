-- The dead letters whose deaths a snapshot sees, oldest first, a page at a time: those after `after`.
--
-- What this statement sees beyond that snapshot is left to new_letters.sql, which begins there. A
-- transaction that this server has yet to begin is one of another, from which the log was restored.
select death.died_in::text, death.id as death, task.id, task.kind, task.payload::text as payload, task.attempts,
    task.last_error, task.enqueued_at, task.finished_at
from scheduler.deaths as death
join scheduler.tasks as task
  on task.id = death.task_id and task.lease_token = death.lease_token
 and task.finished_at = death.died_at and task.status = 'dead'
where death.id > %(after)s
  and (pg_visible_in_snapshot(death.died_in, %(until)s::pg_snapshot)
       or death.died_in >= pg_snapshot_xmax(pg_current_snapshot()))
  and (%(kind)s::text is null or task.kind = %(kind)s)
order by death.id
limit %(limit)s
