-- Cancel tasks that are waiting or running; returns their ids and what each was.
--
-- A running task loses its lease here: the fence refuses whatever its worker still writes, and the
-- worker learns of it at its next renewal. Waits for a row that is just being claimed or completed
-- (bounded by lock_timeout) and then decides on its newest version: a completed task stays so.
with mine as materialized (
    select id, status, lease_token, lease_owner, attempts, claimed_at
    from scheduler.tasks
    where id = any(%(tasks)s::bigint[]) and status in ('pending', 'running')
    order by id
    for update
),
done as (
    update scheduler.tasks as task
    set status = 'cancelled', finished_at = scheduler.now(),
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning task.id
),
logged as (
    insert into scheduler.run_log (
        task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
    select id, lease_token, lease_owner, attempts, claimed_at, scheduler.now(), 'cancelled'
    from mine join done using (id)
    where mine.status = 'running'
)
select id, mine.status from mine join done using (id) order by id
