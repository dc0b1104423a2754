-- Every right that the group roles and public have on the schema and what is in it.
--
-- Without an access list an object has its type's default: for functions that is EXECUTE to public.
with object (type, name, col, acl) as (
    select 'schema', nspname::text, '', coalesce(nspacl, acldefault('n', nspowner))
    from pg_namespace
    where nspname = 'scheduler'
    union all
    select case relkind when 'S' then 'sequence' else 'table' end, relname::text, '',
        coalesce(relacl, acldefault(
            (case relkind when 'S' then 's' else 'r' end)::"char", relowner))
    from pg_class
    where relnamespace = to_regnamespace('scheduler') and relkind in ('r', 'p', 'v', 'm', 'f', 'S')
    union all
    select 'table', relname::text, attname::text, attacl
    from pg_attribute
    join pg_class on pg_class.oid = attrelid
    where relnamespace = to_regnamespace('scheduler') and attacl is not null
    union all
    select 'function', proname::text, '', coalesce(proacl, acldefault('f', proowner))
    from pg_proc
    where pronamespace = to_regnamespace('scheduler')
)
select
    coalesce(rolname::text, 'public') as role,
    lower(privilege_type) || case when is_grantable then ' with grant option' else '' end
        as privilege,
    type, name, col
from object
cross join aclexplode(acl)
left join pg_roles on pg_roles.oid = grantee
where grantee = 0 or rolname = any(%(roles)s)
