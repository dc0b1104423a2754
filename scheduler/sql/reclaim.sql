-- Take back at most `limit` leases that have expired, and log their previous owners.
--
-- The only statement that decides that a lease is over. Any worker runs it at any time: two that run
-- at once lock different rows (SKIP LOCKED), and a row whose lease was renewed between snapshot and
-- lock is checked again in its newest version and drops out. A holder that is completing at this
-- moment has the row's lock, so it is skipped here and wins.
--
-- The attempt was counted at the claim, so a task that keeps killing its workers reaches its cap and
-- is dead-lettered by this same statement. Otherwise it is due again at once: its due time is past.
with expired as materialized (
    select id, lease_token, lease_owner, attempts, claimed_at,
        format('lease expired: worker %%s did not finish attempt %%s in time', lease_owner, attempts)
            as error
    from scheduler.tasks
    where status = 'running' and lease_expires_at < scheduler.now()
    order by lease_expires_at
    limit %(limit)s
    for update skip locked
),
done as (
    update scheduler.tasks as task
    set status = case when task.attempts >= task.max_attempts then 'dead' else 'pending' end,
        finished_at = case when task.attempts >= task.max_attempts then scheduler.now() end,
        last_error = expired.error,
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from expired
    where task.id = expired.id
    returning expired.*, task.kind, task.status
),
logged as (
    insert into scheduler.run_log (
        task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome, error)
    select id, lease_token, lease_owner, attempts, claimed_at, scheduler.now(), 'reclaimed', error
    from done
)
select id, kind, status, lease_token, lease_owner, attempts from done
