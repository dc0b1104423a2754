-- A page of dead letters without their payloads, oldest first: those after (died_at, id).
select id, kind, queue, priority, source, unique_key, status, next_run_at, attempts, max_attempts,
    lease_token, lease_owner, lease_expires_at, left(last_error, 500) as last_error, enqueued_at,
    finished_at
from scheduler.tasks
where status = 'dead'
  and (%(kind)s::text is null or kind = %(kind)s)
  and (%(kinds)s::text[] is null or kind = any(%(kinds)s))
  and (finished_at, id) > (%(after_time)s::timestamptz, %(after_id)s::bigint)
order by finished_at, id
limit %(limit)s
