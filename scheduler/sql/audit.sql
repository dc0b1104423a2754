-- The newest rows of the audit, or of one action in it: who did what, newest first.
--
-- By the primary key, backwards. Of an action that is rare it may read the whole table, which nobody
-- waits for but who asked.
select id, at, action, source, role, kind, schedule, tasks, first_task, last_task, detail
from scheduler.audit
where %(action)s::text is null or action = %(action)s
order by id desc
limit %(limit)s
