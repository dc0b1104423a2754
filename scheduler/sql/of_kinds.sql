-- Which of these tasks are of one of these kinds (null: any).
select id
from scheduler.tasks
where id = any(%(tasks)s::bigint[]) and (%(kinds)s::text[] is null or kind = any(%(kinds)s))
order by id
