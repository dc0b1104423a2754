-- The bearer tokens of the HTTP service: who may speak to it, as which source, and for what.
--
-- A token is known only by the SHA-256 digest of its secret, and found by it in a unique index. A
-- fast hash is right here: the secret is 256 random bits, so there is nothing to guess, and a slow
-- hash, made for passwords that people choose, would only cost every request its time. Nor can the
-- time of a look-up tell anything: to steer a digest byte by byte one would have to invert SHA-256.
--
-- The service's role cannot read the table. It asks find_token, which answers for one digest, so
-- that whoever takes over that role learns neither the other tokens nor what they may do.
--
-- A token speaks for one source. One without a source is a viewer's: it sees the tasks of all, and the
-- table itself keeps it from anything else. No statement changes what a token may do, so none becomes
-- one either: it would have to be made.

create table scheduler.tokens (
    name       text primary key,
    digest     bytea not null unique,
    source     text, -- null: sees all of them, and speaks for none
    scopes     text[] not null,
    kinds      text[],
    created_at timestamptz not null,
    created_by text not null,
    revoked_at timestamptz,

    constraint name_is_plain check (name ~ '^[A-Za-z0-9_.:-]{1,100}$'),
    constraint digest_is_sha256 check (octet_length(digest) = 32),
    constraint source_is_short check (length(source) between 1 and 200),
    constraint scopes_are_known check (
        cardinality(scopes) > 0
        and scopes <@ array['enqueue', 'read', 'cancel', 'operate', 'metrics']),
    constraint without_a_source_it_only_looks check (
        source is not null or scopes <@ array['read', 'metrics']),
    constraint kinds_are_some check (
        kinds is null or cardinality(kinds) > 0 and array_position(kinds, null) is null)
);

-- What the token with this digest may do; nothing for one that is unknown or revoked.
create function scheduler.find_token(wanted bytea)
    returns table (name text, source text, scopes text[], kinds text[])
    language sql stable security definer
    set search_path = pg_catalog, pg_temp as $$
select name, source, scopes, kinds
from scheduler.tokens
where digest = wanted and revoked_at is null
$$;

-- Make a token. A name is used once, even if its token is revoked: the audit names tokens by it.
create function scheduler.create_token(
    token_name text, token_digest bytea, token_source text, token_scopes text[], token_kinds text[]
) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
insert into scheduler.tokens (name, digest, source, scopes, kinds, created_at, created_by)
values (token_name, token_digest, token_source, token_scopes, token_kinds, scheduler.now(),
    session_user);
insert into scheduler.audit (at, action, source, role, tasks, detail)
values (scheduler.now(), 'create-token', coalesce(token_source, session_user), session_user, 0,
    token_name || ': ' || array_to_string(token_scopes, ', ')
        || case when token_source is null then '; all sources' else '' end
        || coalesce('; only ' || array_to_string(token_kinds, ', '), ''));
$$;

-- Revoke a token for good; whether there was one to revoke. It is refused from the commit on.
create function scheduler.revoke_token(token_name text) returns boolean
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with revoked as (
    update scheduler.tokens
    set revoked_at = scheduler.now()
    where name = token_name and revoked_at is null
    returning name, source
),
audited as (
    insert into scheduler.audit (at, action, source, role, tasks, detail)
    select scheduler.now(), 'revoke-token', coalesce(source, session_user), session_user, 0, name
    from revoked
)
select exists (select from revoked)
$$;

-- Write down requests that the service refused: one row for each reason and token, with how many there
-- were since the last time. It calls this once a minute at most, so that nobody fills the table by
-- sending what is refused: the rows are as many as there are reasons and tokens, not requests.
create function scheduler.record_refusals(sources text[], counts bigint[], details text[])
    returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
insert into scheduler.audit (at, action, source, role, tasks, detail)
select scheduler.now(), 'refuse', left(coalesce(refused.source, session_user), 200), session_user,
    greatest(1, coalesce(refused.requests, 1)), left(refused.detail, 1000)
from unnest(sources, counts, details) as refused (source, requests, detail)
limit 1000
$$;

revoke all on scheduler.tokens from public;
revoke all on function scheduler.find_token from public;
revoke all on function scheduler.create_token from public;
revoke all on function scheduler.revoke_token from public;
revoke all on function scheduler.record_refusals from public;
