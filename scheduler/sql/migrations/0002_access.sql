-- Who may enqueue what and how much, and a record of who did what.
--
-- Tasks are enqueued, cancelled, requeued and discarded only through the functions below. They run
-- with their owner's rights (SECURITY DEFINER) and a fixed search_path, so that a role needs no
-- grant on the tables, and no object of its own can slip in between. The source of a task is the
-- role that logged in (session_user, which neither SET ROLE nor a definer's rights change); only a
-- member of scheduler_http, which serves many, may state another.

-- A source with a cap. A source that is not here has none, nor has one whose cap is null. A row is
-- never deleted: its counter must hear of every counted task that ends, the cap being gone or not, or
-- a cap set again would start from a wrong count.
create table scheduler.sources (
    name            text primary key,
    max_outstanding integer check (max_outstanding >= 0),
    outstanding     integer not null default 0 check (outstanding >= 0)
);

-- The sources that may enqueue a kind. A kind that is not here is open to all.
create table scheduler.kind_sources (
    kind   text not null,
    source text not null,
    primary key (kind, source)
);

create domain scheduler.audited_action as text
    constraint action_is_known check (value in (
        'enqueue', 'cancel', 'requeue', 'discard', 'limit', 'cap', 'restrict', 'declare',
        'undeclare', 'pause', 'resume', 'run-now', 'create-token', 'revoke-token',
        'add-hook', 'forget-hook', 'refuse'));

create table scheduler.audit (
    id         bigint generated always as identity primary key,
    at         timestamptz not null,
    action     scheduler.audited_action not null,
    source     text not null, -- for 'cap' the source that is capped
    role       text not null,
    kind       text,
    tasks      bigint not null, -- how many; of 'refuse' how many requests
    first_task bigint,
    last_task  bigint,
    detail     text -- what a cap or a restriction was set to, or why requests were refused
);

create function scheduler.refuse_change() returns trigger
    language plpgsql as $$
begin
    raise exception '%.% is append-only', tg_table_schema, tg_table_name using errcode = 'LP006';
end $$;

create trigger audit_is_append_only
    before update or delete or truncate on scheduler.audit
    execute function scheduler.refuse_change();

-- Tokens only grow, whatever a role does that may claim, and so may write them. It does not bind the
-- tasks' owner, who could drop it. AFTER, as a trigger before the update would lock every row again.
create function scheduler.refuse_lower_token() returns trigger
    language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    if not pg_has_role(current_user, (select relowner from pg_class where oid = tg_relid), 'usage') then
        raise exception 'the lease token of task % may not go down', old.id using errcode = 'LP006';
    end if;
    return null;
end $$;

create trigger tokens_only_grow
    after update of lease_token on scheduler.tasks
    for each row when (new.lease_token < old.lease_token)
    execute function scheduler.refuse_lower_token();

-- The source of a call. `stated` is what the caller says of itself.
create function scheduler.source_of(stated text) returns text
    language plpgsql stable
    set search_path = pg_catalog, pg_temp as $$
begin
    if stated is null or stated = session_user then
        return session_user;
    end if;
    if exists (select from pg_roles where rolname = 'scheduler_http')
        and pg_has_role(session_user, 'scheduler_http', 'member')
    then
        if length(stated) not between 1 and 200 then
            raise exception 'a source has a name of 1 to 200 characters' using errcode = '22023';
        end if;
        return stated;
    end if;
    raise exception 'role % may not enqueue as source %', session_user, stated
        using errcode = 'LP003', hint = 'leave the source out, or grant scheduler_http to the role';
end $$;

-- Raise unless this source may enqueue this kind.
create function scheduler.check_kind(task_kind text, task_source text) returns void
    language plpgsql stable
    set search_path = pg_catalog, pg_temp as $$
begin
    if exists (select from scheduler.kind_sources where kind = task_kind)
        and not exists (
            select from scheduler.kind_sources where kind = task_kind and source = task_source)
    then
        raise exception 'source % may not enqueue tasks of kind %', task_source, task_kind
            using errcode = 'LP003';
    end if;
end $$;

-- Take a share of a capped source's allowance, or raise. False if the source has no cap.
--
-- One conditional update of the source's row: of many enqueues at once each waits for the one before
-- to end and then decides on what that one left (READ COMMITTED checks the condition again on the
-- newest version), so together they cannot exceed the cap by a single task. A transaction that rolls
-- back gives its share back by rolling back. Sources without a cap have no row and never wait.
create function scheduler.take_share(task_source text, wanted integer) returns boolean
    language plpgsql
    set search_path = pg_catalog, pg_temp as $$
declare
    cap integer;
begin
    update scheduler.sources
    set outstanding = outstanding + wanted
    where name = task_source and outstanding + wanted <= max_outstanding;
    if found then
        return true;
    end if;
    select max_outstanding into cap from scheduler.sources where name = task_source;
    if cap is not null then
        raise exception 'source % may have % tasks outstanding, % more would be too many',
            task_source, cap, wanted
            using errcode = 'LP004', hint = 'wait until some are done, or raise its cap';
    end if;
    return false;
end $$;

-- Refuse payloads that are too large, or that carry what looks like a secret in clear.
--
-- Numbers come back written out: `1e131071` has eight characters here and 131,072 in a claim, where a
-- list of them is more than a row can return, and no claim of any task would succeed again. They are
-- counted one by one, so that to find out takes no such text either.
create function scheduler.check_payload(payload text) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp
    set standard_conforming_strings = on as $$ -- the pattern has backslashes
declare
    name text;
    searched text := payload;
    number jsonb;
    written integer := 0;
begin
    if octet_length(payload) > 1048576 then
        raise exception 'a payload of % bytes of JSON, the most is 1048576', octet_length(payload)
            using errcode = 'LP005', hint = 'store it elsewhere and enqueue a reference';
    end if;
    if payload ~ '[0-9][eE][+-]?[0-9]{2}' then
        for number in
            select jsonb_array_elements(jsonb_path_query_array(
                payload::jsonb, 'strict $.** ? (@.type() == "number")'))
        loop
            written := written + octet_length(number::text);
            if written > 1048576 then
                raise exception 'the numbers of a payload have more than 1048576 digits when written out'
                    using errcode = 'LP005', hint = 'give them as text';
            end if;
        end loop;
    end if;
    -- Letters may be written as `\u0070`, of which jsonb makes letters again.
    if payload ~ '\\u00[2-7]' then
        searched := payload::jsonb::text;
    end if;
    name := substring(searched from
        '(?i)"((?:[^"\\]|\\.)*(?:password|passwd|secret|api[_-]?key|private[_-]?key|access[_-]?token|credential)(?:[^"\\]|\\.)*)"\s*:');
    if name is not null then
        raise exception 'the payload has a field %, which looks like a secret', quote_literal(name)
            using errcode = 'LP005',
            hint = 'payloads are stored in clear: declare it with `secrets=` and ask `attempt.secret(name)`';
    end if;
end $$;

-- Refuse arrays that cannot be the columns of one table, each row of which is named by the first:
-- of different lengths (a missing value would be taken for null), or with a name missing or twice.
create function scheduler.check_arrays(what text, names text[], lengths integer[]) returns void
    language plpgsql immutable
    set search_path = pg_catalog, pg_temp as $$
declare
    twice text;
begin
    if cardinality(names) <> any(lengths) is not false
        or exists (select from unnest(names) as name where name is null)
    then
        raise exception 'each % needs a name, and a value in each of the other arrays', what
            using errcode = '22023';
    end if;
    select name into twice from unnest(names) as name group by name having count(*) > 1 limit 1;
    if found then
        raise exception 'the % % is named twice', what, quote_literal(twice) using errcode = '22023';
    end if;
end $$;

-- Tell idle workers that a task of this queue is due soon. Not for later ones: an idle worker looks
-- more often than that by itself. PostgreSQL sends one of many equal notifications of a transaction,
-- at its commit; the payload is a queue's name, far below the limit at which a NOTIFY fails.
create function scheduler.wake(task_queue text, due timestamptz) returns void
    language plpgsql
    set search_path = pg_catalog, pg_temp as $$
begin
    if due <= scheduler.now() + interval '10 seconds' then
        perform pg_notify('scheduler_wake', task_queue);
    end if;
end $$;

-- Enqueue payloads of one kind, all or none; returns their task ids in order.
--
-- The statement's caller sees the tasks when its transaction commits, and so do workers.
create function scheduler.enqueue(
    kind text, queue text, priority smallint, payloads text[], run_at timestamptz, delay interval,
    max_attempts integer, backoff_base double precision, backoff_factor double precision,
    backoff_cap double precision, backoff_jitter double precision, stated_source text default null
) returns setof bigint
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    source text := scheduler.source_of(stated_source);
    total integer := coalesce(cardinality(payloads), 0);
    counted boolean;
    ids bigint[];
begin
    if total = 0 then
        return;
    end if;
    perform scheduler.check_payload(payload) from unnest(payloads) as payload;
    perform scheduler.check_kind(kind, source);
    counted := scheduler.take_share(source, total);
    with created as (
        insert into scheduler.tasks as task (
            kind, queue, priority, payload, next_run_at, max_attempts, backoff_base,
            backoff_factor, backoff_cap, backoff_jitter, source, counted, enqueued_at)
        select kind, queue, priority, new.payload::jsonb, coalesce(run_at, scheduler.now() + delay),
            max_attempts, backoff_base, backoff_factor, backoff_cap, backoff_jitter,
            source, counted, scheduler.now()
        from unnest(payloads) with ordinality as new (payload, position)
        order by new.position
        returning task.id
    )
    select array_agg(created.id order by created.id) into ids from created;
    insert into scheduler.audit (at, action, source, role, kind, tasks, first_task, last_task)
    values (scheduler.now(), 'enqueue', source, session_user, kind, total, ids[1], ids[total]);
    perform scheduler.wake(queue, coalesce(run_at, scheduler.now() + delay));
    return query select unnest(ids);
end $$;

-- Enqueue one task under a key, unless a live task of its kind has that key; returns the id of the
-- task that stands, and whether it is new.
--
-- The unique index decides, the look before it only saves work. ON CONFLICT waits for a rival that
-- has not committed: if that one rolls back the insert goes on, if it commits the next round finds
-- its task, or finds that the task is over and the key free again. A round that fails had a rival
-- that succeeded; a hundred in a row are an error, not a wait without end.
create function scheduler.enqueue_unique(
    kind text, queue text, priority smallint, payload text, run_at timestamptz, delay interval,
    max_attempts integer, backoff_base double precision, backoff_factor double precision,
    backoff_cap double precision, backoff_jitter double precision,
    unique_key text, unique_until text, period interval, stated_source text default null
) returns table (task bigint, created boolean)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    source text := scheduler.source_of(stated_source);
    key text := unique_key;
    counted boolean;
    found_id bigint;
begin
    perform scheduler.check_payload(payload);
    perform scheduler.check_kind(kind, source);
    if length(unique_key) not between 1 and 500 is not false then
        raise exception 'a unique key has 1 to 500 characters' using errcode = '22023';
    end if;
    if unique_until = 'period' then
        if period not between interval '1 second' and interval '36525 days' is not false then
            raise exception 'the period of a unique key is from 1 second to 36525 days'
                using errcode = '22023';
        end if;
        -- The period is part of the key: when it is over the next one is another key.
        key := format('%s@%s/%s', unique_key, extract(epoch from period),
            floor(extract(epoch from scheduler.now()) / extract(epoch from period)));
    end if;
    for round in 1..100 loop
        select standing.id into found_id
        from scheduler.tasks as standing
        where standing.kind = kind and standing.unique_key = key and (
            standing.unique_until = 'started' and standing.status = 'pending'
                and standing.lease_token = 0
            or standing.unique_until = 'finished' and standing.status in ('pending', 'running')
            or standing.unique_until = 'period');
        if found then
            return query select found_id, false;
            return;
        end if;
        -- Before the insert: a session that waits for the source's row holds no key meanwhile, on
        -- which the one that has the row could wait in turn.
        counted := scheduler.take_share(source, 1);
        insert into scheduler.tasks as new (
            kind, queue, priority, payload, next_run_at, max_attempts, backoff_base,
            backoff_factor, backoff_cap, backoff_jitter, unique_key, unique_until, source,
            counted, enqueued_at)
        values (
            kind, queue, priority, payload::jsonb, coalesce(run_at, scheduler.now() + delay),
            max_attempts, backoff_base, backoff_factor, backoff_cap, backoff_jitter, key,
            unique_until, source, counted, scheduler.now())
        on conflict do nothing
        returning new.id into found_id;
        if found then
            insert into scheduler.audit (at, action, source, role, kind, tasks, first_task, last_task)
            values (scheduler.now(), 'enqueue', source, session_user, kind, 1, found_id, found_id);
            perform scheduler.wake(queue, coalesce(run_at, scheduler.now() + delay));
            return query select found_id, true;
            return;
        end if;
        if counted then
            update scheduler.sources set outstanding = outstanding - 1 where name = source;
        end if;
    end loop;
    raise exception 'the key % of kind % changed hands a hundred times', unique_key, kind
        using errcode = 'LP007';
end $$;

-- Make the limits of kinds what the caller's code says; a null limit means none.
--
-- Any number of workers call this when they start: what is so already is neither written nor audited.
-- Nor is it locked: a claim holds the rows of the limits that it keeps.
--
-- A new limit holds for the claims that begin after it is committed. It does not see the leases of
-- claims that began before, until these are committed.
create function scheduler.declare_limits(kinds text[], limits integer[]) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
select scheduler.check_arrays('kind', kinds, array[cardinality(limits)]);
with declared as materialized (
    select kind, max_running from unnest(kinds, limits) as declared (kind, max_running)
),
ended as (
    delete from scheduler.kind_limits as standing
    using declared
    where standing.kind = declared.kind and declared.max_running is null
    returning standing.kind
),
changed as (
    insert into scheduler.kind_limits as standing (kind, max_running)
    select kind, max_running
    from declared
    where max_running is not null and not exists (
        select from scheduler.kind_limits as standing
        where standing.kind = declared.kind and standing.max_running = declared.max_running)
    order by kind
    on conflict (kind) do update set max_running = excluded.max_running
        where standing.max_running <> excluded.max_running
    returning standing.kind
)
insert into scheduler.audit (at, action, source, role, kind, tasks)
select scheduler.now(), 'limit', session_user, session_user, kind, 0
from (select kind from ended union all select kind from changed) as declared
$$;

-- Cancel tasks that are waiting or running; returns their ids and what each was.
--
-- A running task loses its lease here: the fence refuses whatever its worker still writes, and the
-- worker learns of it at its next renewal. Waits for a row that is just being claimed or completed
-- (bounded by lock_timeout) and then decides on its newest version: a completed task stays so.
create function scheduler.cancel(ids bigint[], stated_source text default null)
    returns table (task bigint, was text)
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with mine as materialized (
    select id, status as was, lease_token, lease_owner, attempts, claimed_at
    from scheduler.tasks
    where id = any(ids) and status in ('pending', 'running')
    order by id
    for update
),
done as (
    update scheduler.tasks as task
    set status = 'cancelled', finished_at = scheduler.now(),
        lease_owner = null, lease_expires_at = null, claimed_at = null
    from mine
    where task.id = mine.id
    returning mine.*, task.source, task.counted
),
shares as materialized (
    select name
    from scheduler.sources
    where name in (select source from done where counted)
    order by name
    for update
),
uncounted as (
    update scheduler.sources as capped
    set outstanding = capped.outstanding - over.tasks
    from (select source, count(*) as tasks from done where counted group by source) as over
    where capped.name = over.source and capped.name in (select name from shares)
),
logged as (
    insert into scheduler.run_log (
        task_id, lease_token, lease_owner, attempt, claimed_at, finished_at, outcome)
    select id, lease_token, lease_owner, attempts, claimed_at, scheduler.now(), 'cancelled'
    from done
    where was = 'running'
),
audited as (
    insert into scheduler.audit (at, action, source, role, tasks, first_task, last_task)
    select scheduler.now(), 'cancel', scheduler.source_of(stated_source), session_user, count(*),
        min(id), max(id)
    from done
    having count(*) > 0
)
select id, was from done
$$;

-- Put dead tasks back to work: due now, with all their attempts again; returns the task ids.
--
-- Token and last error stay: the token so that no earlier holder can write, the error until the next
-- attempt has something newer to say. A task whose key another live task has by now stays dead; of two
-- dead ones with the same key the newer is put back. Either would break the key's index otherwise, and
-- with it the whole batch.
--
-- A key that is being enqueued at this moment is not seen. The index then makes this wait for that
-- enqueue to commit, and refuses; looked at again, the task stays dead. What is returned is what the last
-- look put back: rows of an earlier one were rolled back with it.
create function scheduler.requeue(ids bigint[], stated_source text default null)
    returns setof bigint
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
declare
    back bigint[];
begin
    for look in 1..10 loop
        begin
            with newest as materialized (
                select max(id) as id
                from scheduler.tasks
                where id = any(ids) and status = 'dead' and unique_until = 'finished'
                group by kind, unique_key
            ),
            mine as materialized (
                select id
                from scheduler.tasks as dead
                where id = any(ids) and status = 'dead' and (
                    unique_until is distinct from 'finished'
                    or id in (select id from newest) and not exists (
                        select from scheduler.tasks as live
                        where live.kind = dead.kind and live.unique_key = dead.unique_key and (
                            live.unique_until = 'started' and live.status = 'pending' and live.lease_token = 0
                            or live.unique_until = 'finished' and live.status in ('pending', 'running')
                            or live.unique_until = 'period')))
                order by id
                for update
            ),
            done as (
                update scheduler.tasks as task
                set status = 'pending', attempts = 0, next_run_at = scheduler.now(), finished_at = null
                from mine
                where task.id = mine.id
                returning task.id
            ),
            audited as (
                insert into scheduler.audit (at, action, source, role, tasks, first_task, last_task)
                select scheduler.now(), 'requeue', scheduler.source_of(stated_source), session_user, count(*),
                    min(id), max(id)
                from done
                having count(*) > 0
            )
            select array(select id from done) into back;
            exit;
        exception when unique_violation then
            if look = 10 then
                raise;
            end if;
        end;
    end loop;
    return query select unnest(back);
end $$;

-- Give dead tasks up for good; returns the task ids. Payload and last error are kept with the row.
create function scheduler.discard(ids bigint[], stated_source text default null)
    returns setof bigint
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with mine as materialized (
    select id
    from scheduler.tasks
    where id = any(ids) and status = 'dead'
    order by id
    for update
),
done as (
    update scheduler.tasks as task
    set status = 'discarded', finished_at = scheduler.now()
    from mine
    where task.id = mine.id
    returning task.id, task.source, task.counted
),
shares as materialized (
    select name
    from scheduler.sources
    where name in (select source from done where counted)
    order by name
    for update
),
uncounted as (
    update scheduler.sources as capped
    set outstanding = capped.outstanding - over.tasks
    from (select source, count(*) as tasks from done where counted group by source) as over
    where capped.name = over.source and capped.name in (select name from shares)
),
audited as (
    insert into scheduler.audit (at, action, source, role, tasks, first_task, last_task)
    select scheduler.now(), 'discard', scheduler.source_of(stated_source), session_user, count(*),
        min(id), max(id)
    from done
    having count(*) > 0
)
select id from done
$$;

-- Set how many tasks a source may have outstanding; null means any number.
--
-- It holds for what is enqueued from now on: tasks that stand already, more than the cap or enqueued
-- while there was none, stay.
create function scheduler.limit_source(capped text, cap integer) returns void
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
begin
    if capped is null or length(capped) not between 1 and 200 or cap < 0 then
        raise exception 'a source has a name of 1 to 200 characters and a cap of at least 0'
            using errcode = '22023';
    end if;
    insert into scheduler.sources as standing (name, max_outstanding) values (capped, cap)
    on conflict (name) do update set max_outstanding = excluded.max_outstanding
        where standing.max_outstanding is distinct from excluded.max_outstanding;
    if found then
        insert into scheduler.audit (at, action, source, role, tasks, detail)
        values (scheduler.now(), 'cap', capped, session_user, 0, coalesce(cap::text, 'none'));
    end if;
end $$;

-- What roles may call is granted in roles.sql.
revoke all on all functions in schema scheduler from public;
