-- For leases that a batch did not return: is each still held, and if not, how did its attempt end?
--
-- A batch skips locked rows and changes nothing on lost ones; this read tells the two apart. The
-- run log has one row per ended attempt, written in the transaction that ended it, so an outcome
-- found here also answers for a COMMIT whose reply was lost.
select held.id, held.token, held.owner, task.id is not null as still_held, log.outcome
from unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[])
    as held (id, token, owner)
left join scheduler.tasks as task
  on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
left join scheduler.run_log as log
  on log.task_id = held.id and log.lease_token = held.token and log.lease_owner = held.owner
