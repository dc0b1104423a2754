-- One task as it stands.
select id, kind, payload, status, next_run_at, attempts, max_attempts, lease_token, lease_owner,
    lease_expires_at, last_error, enqueued_at, finished_at
from scheduler.tasks
where id = %(task)s
