-- End attempts that are still held as failed, and log them; returns each task id and its new status.
--
-- At the cap the same statement dead-letters, so there is no moment at which an exhausted task is
-- neither retried nor dead. Otherwise the next due time follows the backoff stored on the row.
-- Fenced, ordered and skipping like complete.sql.
with mine as materialized (
    select task.id, held.token, held.owner, task.attempts, task.claimed_at, held.error
    from unnest(%(tasks)s::bigint[], %(tokens)s::bigint[], %(owners)s::text[], %(errors)s::text[])
        as held (id, token, owner, error)
    join scheduler.tasks as task
      on task.id = held.id and task.lease_token = held.token and task.lease_owner = held.owner
    order by task.id
    for update of task skip locked
),
done as (
    update scheduler.tasks as task
    set status = case when task.attempts >= task.max_attempts then 'dead' else 'pending' end,
        finished_at = case when task.attempts >= task.max_attempts then scheduler.now() end,
        next_run_at = case
            when task.attempts >= task.max_attempts then task.next_run_at
            else scheduler.now() + scheduler.retry_delay(
                task.backoff_base, task.backoff_factor, task.backoff_cap, task.backoff_jitter,
                task.attempts, task.id, task.lease_token)
        end,
        last_error = mine.error,
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning mine.*, task.status
),
logged as (
    insert into scheduler.run_log (
        task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome, error)
    select id, token, owner, attempts, claimed_at, scheduler.now(), 'failed', error
    from done
)
select id, status from done
