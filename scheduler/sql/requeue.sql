-- Put dead tasks back to work: due now, with all their attempts again; returns the task ids.
--
-- Token and last error stay: the token so that no earlier holder can write, the error until the next
-- attempt has something newer to say.
with mine as materialized (
    select id
    from scheduler.tasks
    where id = any(%(tasks)s::bigint[]) and status = 'dead'
    order by id
    for update
)
update scheduler.tasks as task
set status = 'pending', attempts = 0, next_run_at = scheduler.now(), finished_at = null
from mine
where task.id = mine.id
returning task.id
