"""The doctor's checks of rights: the roles, their grants, functions that run as their owner."""

from __future__ import annotations

from psycopg import Connection

from scheduler.doctor.finding import Finding, some
from scheduler.roles import Grant, grants, missing_roles, roles
from scheduler.statements import fetch


def group_roles(connection: Connection) -> Finding:
    """The roles of roles.sql exist and have no powers of their own."""
    powers = [text for (text,) in fetch(connection, "doctor/role_powers", {"roles": roles()})]
    if powers:
        return Finding("fail", some(powers), "take it away: grants are all that they should have")
    missing = missing_roles(connection)
    if missing:
        return Finding("warn", f"missing: {', '.join(missing)}", "run `scheduler roles`")
    return Finding("ok", f"{len(roles())} roles")


def role_grants(connection: Connection) -> Finding:
    """Grants are those of roles.sql: nothing less, nothing more, and for public nothing at all."""
    rows = fetch(connection, "doctor/grants", {"roles": roles()})
    found = {Grant(*row) for row in rows}
    missing_role = set(missing_roles(connection))
    wanted = {grant for grant in grants() if grant.role not in missing_role}
    more, less = sorted(found - wanted), sorted(wanted - found)
    if not more and not less:
        return Finding("ok", f"{len(found)} grants, none to public")
    return Finding(
        "fail",
        some(
            [f"too much: {_words(grant)}" for grant in more]
            + [f"missing: {_words(grant)}" for grant in less]
        ),
        "run `scheduler roles`, or `scheduler migrate` as the schema's owner",
    )


def definer_functions(connection: Connection) -> Finding:
    """A function with its owner's rights must not find a caller's objects before the catalog's."""
    rows = fetch(connection, "doctor/definers", {})
    unpinned = [name for name, _, pinned, _ in rows if not pinned]
    if unpinned:
        return Finding(
            "fail",
            f"without the pinned search_path: {some(unpinned)}",
            "alter function ... set search_path = pg_catalog, pg_temp",
        )
    strangers = [f"{name} of {owner}" for name, owner, _, owns in rows if not owns]
    if strangers:
        return Finding(
            "fail",
            f"not of the owner of scheduler.tasks: {some(strangers)}",
            "alter function ... owner to the owner of the tables, and drop what is not ours",
        )
    owners = sorted({owner for _, owner, _, _ in rows})
    return Finding("ok", f"{len(rows)} functions of {', '.join(owners)}, search_path pinned")


def _words(grant: Grant) -> str:
    column = f" ({grant.column})" if grant.column else ""
    return f"{grant.privilege}{column} on {grant.type} {grant.name} to {grant.role}"
