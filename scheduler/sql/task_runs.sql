-- The finished attempts of one task, in the order of their claims.
--
-- Those after a token, at most `limit` (null: all).
select attempt, lease_token, lease_owner, claimed_at, finished_at, outcome, error
from scheduler.run_log
where task_id = %(task)s and lease_token > %(after)s
order by lease_token
limit %(limit)s
