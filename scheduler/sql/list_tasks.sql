-- A page of tasks without their payloads, newest first: those with an id below `before`.
--
-- A page starts where the one before ended, by id, so tasks that are added or that move on meanwhile
-- make no other appear twice or not at all. Planned anew each time (see `listing.py`): where a filter
-- is null its condition is gone, where it is `pending`, `running` or `dead` a partial index serves.
--
-- Running tasks are looked for by themselves: few, and in an index of their own. So tasks_source, which
-- serves those of one source, can do without them, and a claim or a renewal writes nothing to it.
with wanted as not materialized (
    select id, kind, queue, priority, source, unique_key, status, next_run_at, attempts, max_attempts,
        lease_token, lease_owner, lease_expires_at, last_error, enqueued_at, finished_at
    from scheduler.tasks
    where id < %(before)s
      and (%(kind)s::text is null or kind = %(kind)s)
      and (%(status)s::text is null or status = %(status)s)
      and (%(queue)s::text is null or queue = %(queue)s)
      and (%(source)s::text is null or source = %(source)s)
      and (%(kinds)s::text[] is null or kind = any(%(kinds)s))
)
select id, kind, queue, priority, source, unique_key, status, next_run_at, attempts, max_attempts,
    lease_token, lease_owner, lease_expires_at, left(last_error, 500) as last_error, enqueued_at,
    finished_at
from (
    (select * from wanted where status <> 'running' order by id desc limit %(limit)s)
    union all
    (select * from wanted where status = 'running' order by id desc limit %(limit)s)
) as task
order by id desc
limit %(limit)s
