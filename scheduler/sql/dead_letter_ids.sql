-- The ids of the dead letters of a kind, or of all, oldest first.
select id
from scheduler.tasks
where status = 'dead' and (%(kind)s::text is null or kind = %(kind)s)
order by finished_at, id
