-- Leases that expired a while ago and were not reclaimed, and how many sessions of workers there are.
select
    (select count(*) from scheduler.tasks
     where status = 'running' and lease_expires_at < scheduler.now() - %(overdue)s::interval),
    (select count(*) from pg_stat_activity
     where datname = current_database() and application_name like 'scheduler %%')
