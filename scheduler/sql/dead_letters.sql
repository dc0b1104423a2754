-- The dead letters, oldest first, a page at a time: those after (died_at, id) of the previous page.
select id, kind, payload::text as payload, attempts, last_error, enqueued_at, finished_at
from scheduler.tasks
where status = 'dead'
  and (%(kinds)s::text[] is null or kind = any(%(kinds)s))
  and (finished_at, id) > (%(after_time)s::timestamptz, %(after_id)s::bigint)
order by finished_at, id
limit %(limit)s
