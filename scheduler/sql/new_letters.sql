-- The deaths that one snapshot does not see and a later one does, a page at a time: those after
-- (after_in, after), in the order in which their transactions began.
--
-- Nothing is lost or repeated from one pair of snapshots to the next, in whatever order transactions
-- commit: each is seen by a snapshot or is not, and once seen it is seen by every later one. A task
-- that was put back to work since is told of all the same, as it was when it died. In the order of
-- deaths_in, so that a page is read from where the one before ended, however many there are.
select death.died_in::text, death.id as death, task.id, task.kind, task.payload::text as payload,
    death.attempts, death.last_error, task.enqueued_at, death.died_at as finished_at
from scheduler.deaths as death
join scheduler.tasks as task on task.id = death.task_id
where (death.died_in, death.id)
        > (greatest(%(after_in)s::xid8, pg_snapshot_xmin(%(seen)s::pg_snapshot)), %(after)s::bigint)
  and not pg_visible_in_snapshot(death.died_in, %(seen)s::pg_snapshot)
  and pg_visible_in_snapshot(death.died_in, %(until)s::pg_snapshot)
  and (%(kind)s::text is null or task.kind = %(kind)s)
order by death.died_in, death.id
limit %(limit)s
