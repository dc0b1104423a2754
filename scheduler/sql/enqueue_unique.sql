-- Enqueue one task unless a live one of its kind has its key.
--
-- Returns the standing task's id, and whether it is new. The argument for its correctness is with the function, in 0002_access.sql.
select task, created
from scheduler.enqueue_unique(
    %(kind)s, %(queue)s, %(priority)s::smallint, %(payload)s, %(run_at)s::timestamptz,
    %(delay)s::interval, %(max_attempts)s, %(base)s, %(factor)s, %(cap)s, %(jitter)s,
    %(key)s, %(until)s, %(period)s::interval, %(source)s)
