-- The kinds whose leases are limited, and to how many at once.
select kind, max_running from scheduler.kind_limits order by kind
