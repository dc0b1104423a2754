-- Plan the given occurrences and move their schedules on; wakes idle workers.
--
-- The statement is all there is to its transaction: a stopped worker holds nothing. See
-- 0003_schedules.sql.
select task, schedule, occurrence, woken
from scheduler.plan_occurrences(
    %(names)s::text[], %(rules)s::text[], %(timezones)s::text[], %(read)s::timestamptz[],
    %(occurrences)s::timestamptz[], %(next)s::timestamptz[])
