-- Give back attempts whose handler never started, and log them; returns the task ids.
--
-- The attempt is not counted, but the token stays as high as it is: a token that went down could be
-- issued twice. Fenced, ordered and skipping like complete.sql.
with mine as materialized (
    select task.id, held.token, held.owner, task.attempts, task.claimed_at
    from unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[])
        as held (id, token, owner)
    join scheduler.tasks as task
      on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
    order by task.id
    for update of task skip locked
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
select id, token, owner, attempts, claimed_at, scheduler.now(), 'released'
from done
returning task_id
