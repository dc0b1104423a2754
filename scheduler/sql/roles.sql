-- The roles, and what each may do: nothing besides what stands here.
--
-- Login roles become members of the group role that they need. Safe to run at any time, also by many
-- at once: the advisory lock puts them in a row, and `scheduler migrate`, which takes the same lock,
-- too; one that creates the roles in another database of this server meanwhile is met by the
-- exception handler, since roles belong to the whole server. In one transaction, so that no session
-- sees a role between the REVOKE and its grants.
--
-- `scheduler doctor` reads the GRANT statements below, and reports whatever the database has more or
-- less. Each is of the form: grant WHAT on TYPE NAME to ROLES. No name is overloaded.

select pg_advisory_xact_lock(hashtextextended('scheduler.migrate', 0));

do $$
declare
    wanted text;
begin
    if to_regnamespace('scheduler') is null then
        raise exception 'the database has no scheduler schema yet: run `scheduler migrate` first'
            using errcode = 'invalid_schema_name';
    end if;
    if not pg_has_role(
        (select nspowner from pg_namespace where nspname = 'scheduler'), 'usage')
    then
        raise exception 'role % does not own the schema scheduler, so it cannot grant rights in it',
            current_user using errcode = 'insufficient_privilege';
    end if;
    foreach wanted in array array[
        'scheduler_enqueue', 'scheduler_http', 'scheduler_worker', 'scheduler_operator',
        'scheduler_reader']
    loop
        continue when exists (select from pg_roles where rolname = wanted);
        begin
            execute format('create role %I nologin', wanted);
        exception
            when duplicate_object or unique_violation then
                null; -- another database's run has just created it
        end;
    end loop;
end $$;

revoke all on schema scheduler from public,
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;
revoke all on all tables in schema scheduler from public,
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;
revoke all on all sequences in schema scheduler from public,
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;
revoke all on all functions in schema scheduler from public,
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;

-- All of them.

grant usage on schema scheduler to
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;
grant execute on function scheduler.now to
    scheduler_enqueue, scheduler_http, scheduler_worker, scheduler_operator, scheduler_reader;
-- Whether the schema is the package's own version, which every client asks first.
grant select (version) on table scheduler.migrations to
    scheduler_enqueue, scheduler_http, scheduler_worker;

-- scheduler_enqueue: the two functions. scheduler_http the same; that it may state the source of a
-- task, because it serves many, is decided in scheduler.source_of.

grant execute on function scheduler.enqueue to scheduler_enqueue, scheduler_http;
grant execute on function scheduler.enqueue_unique to scheduler_enqueue, scheduler_http;

-- scheduler_worker: moves tasks along and logs it. It cannot create or remove one, nor change what a
-- task is: kind, payload, attempts allowed, backoff, source.

grant select on table scheduler.tasks to scheduler_worker;
grant update (
    status, attempts, lease_token, lease_owner, lease_expires_at, claimed_at, next_run_at,
    finished_at, last_error
) on table scheduler.tasks to scheduler_worker;
grant insert on table scheduler.run_log to scheduler_worker;
grant select (task_id, lease_token, lease_owner, outcome) on table scheduler.run_log
    to scheduler_worker;
-- A task that ends frees its source's place.
grant select (name, outstanding) on table scheduler.sources to scheduler_worker;
grant update (outstanding) on table scheduler.sources to scheduler_worker;
-- A claim locks the limit of a kind, and does not change it.
grant select (kind, max_running) on table scheduler.kind_limits to scheduler_worker;
grant update (lockable) on table scheduler.kind_limits to scheduler_worker;
-- Workers tell each other where the earliest waiting task is.
grant select on table scheduler.claim_floors to scheduler_worker;
grant insert on table scheduler.claim_floors to scheduler_worker;
grant update (next_run_at, id, found_at) on table scheduler.claim_floors to scheduler_worker;
grant execute on function scheduler.declare_limits to scheduler_worker;
grant execute on function scheduler.priority_credit to scheduler_worker;
grant execute on function scheduler.retry_delay to scheduler_worker;
grant execute on function scheduler.refuse_lost_lease to scheduler_worker;
grant execute on function scheduler.refuse_other_transaction to scheduler_worker;
grant execute on function scheduler.add_run_log_partitions to scheduler_worker;

-- scheduler_reader: sees everything, payloads too. scheduler_operator: that, and what is audited.

grant select on table scheduler.tasks to scheduler_reader, scheduler_operator;
grant select on table scheduler.run_log to scheduler_reader, scheduler_operator;
grant select on table scheduler.run_log_rest to scheduler_reader, scheduler_operator;
grant select on table scheduler.audit to scheduler_reader, scheduler_operator;
grant select on table scheduler.settings to scheduler_reader, scheduler_operator;
grant select on table scheduler.migrations to scheduler_reader, scheduler_operator;
grant select on table scheduler.sources to scheduler_reader, scheduler_operator;
grant select on table scheduler.kind_sources to scheduler_reader, scheduler_operator;
grant select on table scheduler.kind_limits to scheduler_reader, scheduler_operator;
grant execute on function scheduler.cancel to scheduler_operator;
grant execute on function scheduler.requeue to scheduler_operator;
grant execute on function scheduler.discard to scheduler_operator;
grant execute on function scheduler.limit_source to scheduler_operator;
grant execute on function scheduler.restrict_kind to scheduler_operator;

-- 0003_schedules.sql.

grant select on table scheduler.schedules to
    scheduler_worker, scheduler_reader, scheduler_operator;
grant execute on function scheduler.declare_schedules to scheduler_worker;
grant execute on function scheduler.plan_occurrences to scheduler_worker;
grant execute on function scheduler.pause_schedules to scheduler_operator;
grant execute on function scheduler.resume_schedules to scheduler_operator;
grant execute on function scheduler.run_schedule to scheduler_operator;

-- 0004_tokens.sql: the HTTP service speaks for others, each known by a token, and shows them tasks.
-- It finds a token by its digest and can list none. An operator sees all of a token but its digest,
-- and can revoke it; to create one is to choose whom it speaks for, and is left to the owner.

grant execute on function scheduler.find_token to scheduler_http;
grant execute on function scheduler.record_refusals to scheduler_http;
grant execute on function scheduler.cancel to scheduler_http;
grant execute on function scheduler.requeue to scheduler_http;
grant execute on function scheduler.discard to scheduler_http;
grant execute on function scheduler.pause_schedules to scheduler_http;
grant execute on function scheduler.resume_schedules to scheduler_http;
grant execute on function scheduler.run_schedule to scheduler_http;
grant select on table scheduler.schedules to scheduler_http;
grant select on table scheduler.tasks to scheduler_http;
grant select on table scheduler.run_log to scheduler_http;
grant select on table scheduler.settings to scheduler_http;
grant select (
    name, source, scopes, kinds, created_at, created_by, revoked_at
) on table scheduler.tokens to scheduler_operator;
grant execute on function scheduler.revoke_token to scheduler_operator;

-- 0005_deaths.sql: whoever is told of deaths is set up, and told, by an operator; the HTTP service counts
-- what waits, for its metrics, and shows the limits of kinds beside what runs.

grant select on table scheduler.deaths to scheduler_reader, scheduler_operator;
grant select on table scheduler.dead_letter_hooks to
    scheduler_reader, scheduler_operator, scheduler_http;
grant select on table scheduler.deliveries to scheduler_reader, scheduler_operator, scheduler_http;
grant update (attempts, given_up, next_at, last_error) on table scheduler.deliveries to scheduler_operator;
grant execute on function scheduler.register_hook to scheduler_operator;
grant execute on function scheduler.forget_hook to scheduler_operator;
grant execute on function scheduler.delivered to scheduler_operator;
grant select (kind, max_running) on table scheduler.kind_limits to scheduler_http;

-- What a further migration adds: one section for it here, in the same form.
