-- A page of tasks without their payloads, newest first: those with an id below `before`.
--
-- A page starts where the one before ended, by id, so tasks that are added or that move on meanwhile
-- make no other appear twice or not at all. Planned anew each time (see `listing.py`): where a filter
-- is null its condition is gone, where it is `pending`, `running` or `dead` a partial index serves.
select id, kind, queue, priority, source, unique_key, status, next_run_at, attempts, max_attempts,
    lease_token, lease_owner, lease_expires_at, left(last_error, 500) as last_error, enqueued_at,
    finished_at
from scheduler.tasks
where id < %(before)s
  and (%(kind)s::text is null or kind = %(kind)s)
  and (%(status)s::text is null or status = %(status)s)
  and (%(queue)s::text is null or queue = %(queue)s)
  and (%(source)s::text is null or source = %(source)s)
  and (%(kinds)s::text[] is null or kind = any(%(kinds)s))
order by id desc
limit %(limit)s
