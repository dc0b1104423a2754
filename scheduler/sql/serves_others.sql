-- Whether this session's login role may state the source of what it does, because it serves many.
select coalesce(
    pg_has_role(session_user, (select oid from pg_roles where rolname = 'scheduler_http'), 'member'),
    false)
