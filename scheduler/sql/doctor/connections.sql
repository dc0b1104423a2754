-- How many connections there are and may be: on the server, and to this database (-1: no limit).
select
    (select sum(numbackends)::bigint from pg_stat_database) as used,
    current_setting('max_connections')::bigint
        - current_setting('superuser_reserved_connections')::bigint
        - coalesce(current_setting('reserved_connections', true), '0')::bigint as most,
    numbackends::bigint as used_here,
    datconnlimit::bigint as most_here
from pg_stat_database
join pg_database on pg_database.oid = datid
where pg_database.datname = current_database()
