-- Kinds with waiting tasks that are not among these, and how many tasks each has.
select kind, count(*)
from scheduler.tasks
where status = 'pending' and kind <> all(%(kinds)s)
group by kind
order by count(*) desc, kind
