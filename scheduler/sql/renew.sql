-- Move the expiry of leases that are still held; returns those that were.
--
-- Fenced: a row counts only if id, token and owner are all still those of this lease, so a zombie
-- cannot keep another worker's claim alive. A lease past its expiry that nobody reclaimed is still
-- held: only reclaim decides that a lease is over, and it and this statement exclude each other by
-- the row's lock.
--
-- SKIP LOCKED: one row that is being completed must not hold up the renewal of all the others. A
-- row that is not returned was lost or merely locked; the caller takes a second look.
with mine as materialized (
    select task.id, held.lease
    from unnest(
        %(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[], %(leases)s::interval[]
    ) as held (id, token, owner, lease)
    join scheduler.tasks as task
      on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
    order by task.id
    for update of task skip locked
)
update scheduler.tasks as task
set lease_expires_at = scheduler.now() + mine.lease
from mine
where task.id = mine.id
returning task.id, task.lease_token, task.lease_owner, task.lease_expires_at
