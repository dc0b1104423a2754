-- Complete attempts that are still held, and log them; returns the task ids that were.
--
-- Fenced by id, token and owner under the row's lock: of two writers, the second finds the lease
-- gone and changes nothing. Rows are locked in id order and locked ones are skipped, so batches can
-- neither deadlock nor wait; the caller takes a second look at what was not returned.
--
-- A task of a capped source frees its place. Its source's row is locked first, as an enqueue does, and
-- passed over if somebody has it: whoever enqueues in a long transaction holds it for as long, and must
-- not hold up the completion of all else. Such a task is completed at a later call. Where no source has
-- a cap this reads and writes nothing.
--
-- The update itself returns what the log needs: a join of two CTEs is planned without statistics, and for
-- a large batch that was quadratic.
--
-- The log carries the token and owner of the writer, as it gave them, and not those of the row: were
-- the fence ever broken, the log would show whose write it let through.
with held as materialized (
    select id, token, owner
    from unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[])
        as held (id, token, owner)
),
free as materialized (
    select name
    from scheduler.sources
    where name in (
        select task.source
        from held
        join scheduler.tasks as task
          on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
        where task.counted and exists (select from scheduler.sources))
    order by name
    for update skip locked
),
mine as materialized (
    select task.id, held.token, held.owner, task.attempts, task.claimed_at
    from held
    join scheduler.tasks as task
      on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
    where not task.counted
       or task.source = any(array(select name from free))
       or not exists (select from scheduler.sources where name = task.source)
    order by task.id
    for update of task skip locked
),
done as (
    update scheduler.tasks as task
    set status = 'completed', finished_at = scheduler.now(),
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning mine.*, task.source, task.counted
),
uncounted as (
    update scheduler.sources as capped
    set outstanding = capped.outstanding - over.tasks
    from (select source, count(*) as tasks from done where counted group by source) as over
    where capped.name = over.source
)
insert into scheduler.run_log (
    task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
select id, token, owner, attempts, claimed_at, scheduler.now(), 'completed'
from done
returning task_id
