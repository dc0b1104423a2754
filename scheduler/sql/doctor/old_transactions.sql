-- Sessions and replication slots that keep dead rows from being removed, and for how long already.
--
-- A session does so by its snapshot or by the transaction id it has; those of other databases do not
-- matter to this one's tables.
select format('session %%s of %%s (%%s, %%s) for %%s s', pid, usename, application_name, state,
        extract(epoch from clock_timestamp() - xact_start)::bigint)
from pg_stat_activity
where xact_start < clock_timestamp() - %(older)s::interval
  and (backend_xmin is not null or backend_xid is not null)
  and (datname = current_database() or datname is null)
  and backend_type <> 'autovacuum worker'
  and pid <> pg_backend_pid()
union all
select format('replication slot %%s, %%s transactions behind', slot_name, age(xmin))
from pg_replication_slots
where xmin is not null
