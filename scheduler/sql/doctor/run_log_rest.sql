-- How many rows of the run log no monthly partition took, and the time of the first.
select count(*), min(finished_at) from scheduler.run_log_rest
