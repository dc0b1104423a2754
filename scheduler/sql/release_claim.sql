-- Give back every row of claims whose reply never arrived, and log them; returns the task ids.
--
-- Such rows can be named only by the claim's owner, whose nonce nobody else has; since the reply was
-- lost no handler started, so the attempts are given back. A claim that is still executing is not
-- seen yet: the worker asks again until the lease would be over anyway.
with mine as materialized (
    select task.id, task.lease_token, task.lease_owner, task.attempts, task.claimed_at
    from scheduler.tasks as task
    where task.status = 'running' and task.lease_owner = any(%(owners)s::text[])
    order by task.id
    for update skip locked
),
done as (
    update scheduler.tasks as task
    set status = 'pending', attempts = task.attempts - 1,
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning mine.*
)
insert into scheduler.run_log (
    task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
select id, lease_token, lease_owner, attempts, claimed_at, scheduler.now(), 'released'
from done
returning task_id
