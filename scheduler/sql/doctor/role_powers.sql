-- What group roles can do besides their grants: attributes, and roles that they are members of.
select rolname::text || ' ' || power
from pg_roles
cross join lateral (
    values (rolcanlogin, 'can log in'), (rolsuper, 'is a superuser'),
        (rolcreaterole, 'may create roles'), (rolcreatedb, 'may create databases'),
        (rolbypassrls, 'bypasses row security'), (rolreplication, 'may replicate')
) as attribute (has, power)
where rolname = any(%(roles)s) and has
union all
select member.rolname::text || ' is a member of ' || granted.rolname::text
from pg_auth_members
join pg_roles as member on member.oid = pg_auth_members.member
join pg_roles as granted on granted.oid = pg_auth_members.roleid
where member.rolname = any(%(roles)s)
