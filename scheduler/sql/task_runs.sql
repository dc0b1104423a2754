-- The finished attempts of one task, in the order of their claims.
select attempt, lease_token, lease_owner, claimed_at, finished_at, outcome, error
from scheduler.run_log
where task_id = %(task)s
order by lease_token
