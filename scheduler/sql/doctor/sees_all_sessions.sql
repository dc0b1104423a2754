-- Whether this role may see what other roles' sessions do.
select pg_has_role('pg_read_all_stats', 'usage')
