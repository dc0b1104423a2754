-- The functions that run with their owner's rights: who that is, and what they pin.
select proname::text, pg_get_userbyid(proowner)::text as owner,
    coalesce(proconfig @> array['search_path=pg_catalog, pg_temp'], false) as pinned,
    proowner = (select relowner from pg_class where oid = to_regclass('scheduler.tasks'))
        as owns_tasks
from pg_proc
where pronamespace = to_regnamespace('scheduler') and prosecdef
order by proname
