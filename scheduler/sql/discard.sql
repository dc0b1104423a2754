-- Give dead tasks up for good; returns the task ids. Payload and last error are kept with the row.
with mine as materialized (
    select id
    from scheduler.tasks
    where id = any(%(tasks)s::bigint[]) and status = 'dead'
    order by id
    for update
)
update scheduler.tasks as task
set status = 'discarded', finished_at = scheduler.now()
from mine
where task.id = mine.id
returning task.id
