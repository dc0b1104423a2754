-- What scheduler.now() really reads, and what is recorded as the clock.
select
    coalesce(pg_get_function_sqlbody(oid), prosrc) as body,
    (select value from scheduler.settings where name = 'clock') as recorded
from pg_proc
where oid = to_regprocedure('scheduler.now()')
