-- One task as it stands; the payload as text, whose numbers no reader then rounds.
select id, kind, queue, priority, source, unique_key, payload::text as payload, status, next_run_at,
    attempts, max_attempts, lease_token, lease_owner, lease_expires_at, last_error, enqueued_at,
    finished_at
from scheduler.tasks
where id = %(task)s
