-- Put attempts that are still held off for a while at the handler's wish; returns the task ids.
--
-- Not a failure: the attempt is given back and no backoff applies. The token stays as it is: fencing
-- by the attempt count, which goes down here, would let a zombie's write through (the ABA problem).
-- Fenced, ordered and skipping like complete.sql.
with mine as materialized (
    select task.id, held.token, held.owner, task.attempts, task.claimed_at, held.delay
    from unnest(
        %(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[], %(delays)s::interval[]
    ) as held (id, token, owner, delay)
    join scheduler.tasks as task
      on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
    order by task.id
    for update of task skip locked
),
done as (
    update scheduler.tasks as task
    set status = 'pending', attempts = task.attempts - 1,
        next_run_at = scheduler.now() + mine.delay,
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning mine.*
)
insert into scheduler.run_log (
    task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
select id, token, owner, attempts, claimed_at, scheduler.now(), 'snoozed'
from done
returning task_id
