-- Values of one setting that are stored for this database or for roles in it, and for whom.
select
    config,
    coalesce('database ' || datname, 'every database') || ', '
        || coalesce('role ' || rolname, 'every role') as whom
from pg_db_role_setting
cross join unnest(setconfig) as config
left join pg_database on pg_database.oid = setdatabase
left join pg_roles on pg_roles.oid = setrole
where (setdatabase = 0 or datname = current_database())
  and split_part(config, '=', 1) = %(setting)s
