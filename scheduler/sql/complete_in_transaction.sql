-- Complete one attempt inside its handler's transaction, and log it; raises LP001 if it is lost.
--
-- The handler's writes and this completion commit together or not at all: that is what makes an
-- effect happen exactly once. The lease must therefore be refused by an error, not by a row count
-- that somebody could forget to read: the statement and the COMMIT are one message, and the error
-- makes the server skip the rest of it.
--
-- Nor may this be another transaction than the one whose first statement was begin_attempt.sql: a
-- COMMIT of the handler's own would have made its writes happen without the completion.
--
-- No SKIP LOCKED: the row may be under renewal by this very worker, which is over in a moment
-- (lock_timeout bounds it). After the wait the fence is checked on the newest version of the row.
with mine as materialized (
    select task.id, %(token)s::bigint as token, %(owner)s::text as owner, task.attempts, task.claimed_at
    from scheduler.tasks as task
    where task.id = %(task)s and task.lease_token = %(token)s and task.lease_owner = %(owner)s
    for update
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
    set outstanding = capped.outstanding - 1
    from done
    where done.counted and capped.name = done.source
),
logged as (
    insert into scheduler.run_log (
        task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
    select id, token, owner, attempts, claimed_at, scheduler.now(), 'completed'
    from done
    returning task_id
)
select case
    when current_setting('scheduler.attempt', true)
        is distinct from %(task)s || ':' || %(owner)s || ':' || %(token)s
        then scheduler.refuse_other_transaction(%(task)s)
    else coalesce(
        (select task_id from logged), scheduler.refuse_lost_lease(%(task)s, %(token)s))
end
