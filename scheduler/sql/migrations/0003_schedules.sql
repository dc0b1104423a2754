-- Recurring tasks: what is due again and again, and up to when that has been dealt with.
--
-- A schedule is a row here; each of its occurrences is an ordinary row of scheduler.tasks, planned by
-- plan_occurrences below. Whether a schedule waits for an occurrence that is under way, or is stopped
-- by a dead one, is not stored: it is what scheduler.tasks says at the moment.

create table scheduler.schedules (
    name           text primary key,
    application    text not null,
    kind           scheduler.kind_name not null,
    queue          scheduler.queue_name not null,
    priority       scheduler.priority_level not null,
    payload        jsonb not null,
    max_attempts   integer not null,
    backoff_base   scheduler.backoff_seconds not null,
    backoff_factor scheduler.backoff_factor not null,
    backoff_cap    scheduler.backoff_seconds not null,
    backoff_jitter scheduler.backoff_jitter not null,
    rule           text not null,
    timezone       text not null,
    missed         text not null,
    on_dead        text not null,
    declared       boolean not null default true, -- does the application's code still have it
    paused         boolean not null default false, -- by an operator
    -- The due times from here on are yet to be dealt with. Often the first of them itself; after a
    -- declaration or a resumption simply that moment, so that nothing earlier is caught up.
    next_at        scheduler.readable_time not null,
    source         text not null default session_user,
    created_at     timestamptz not null,
    changed_at     timestamptz not null,

    constraint name_is_short check (length(name) between 1 and 100),
    constraint application_is_short check (length(application) between 1 and 100),
    constraint rule_is_short check (length(rule) between 1 and 600),
    constraint timezone_is_short check (length(timezone) between 1 and 100),
    constraint missed_is_known check (missed in ('skip', 'once', 'all')),
    constraint on_dead_is_known check (on_dead in ('stop', 'continue')),
    -- As on scheduler.tasks, like the columns' types: an occurrence that those refuse would abort the
    -- planning of all others.
    constraint has_attempts check (max_attempts >= 1),
    constraint backoff_is_bounded check (backoff_cap >= backoff_base)
);

create index schedules_next on scheduler.schedules (next_at, name) where declared and not paused;
create index tasks_of_schedule on scheduler.tasks (schedule)
    where schedule is not null and status in ('pending', 'running', 'dead');

alter table scheduler.audit add column schedule text;

-- Wait for whoever is declaring, resuming or restricting what may be scheduled, and keep others from
-- it until this transaction ends.
create function scheduler.lock_schedules() returns void
    language sql
    set search_path = pg_catalog, pg_temp as $$
select pg_advisory_xact_lock(hashtextextended('scheduler.schedules', 0))
$$;

-- Make the schedules of an application what its code says.
--
-- Any number of workers call this when they start: what is so already is neither written nor audited.
-- A schedule that the application no longer declares is kept, with its history, and plans nothing.
-- What is new, declared again, or has another rule begins now; else next_at stays, and so does an
-- operator's pause.
--
-- Declarations take place one after the other, so that two which differ cannot wait for each other's
-- rows. The lock is asked for by the first statement, so the others see all that earlier ones wrote.
create function scheduler.declare_schedules(
    application text, names text[], kinds text[], queues text[], priorities smallint[],
    payloads text[], max_attempts integer[], backoff_bases double precision[],
    backoff_factors double precision[], backoff_caps double precision[],
    backoff_jitters double precision[], rules text[], timezones text[], missed text[],
    on_dead text[]
) returns table (schedule text, change text)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_variable
declare
    foreign_name text;
    owner text;
begin
    if application is null then
        raise exception 'schedules are declared for an application, which has a name'
            using errcode = '22023';
    end if;
    perform scheduler.check_arrays('schedule', names, array[
        cardinality(kinds), cardinality(queues), cardinality(priorities), cardinality(payloads),
        cardinality(max_attempts), cardinality(backoff_bases), cardinality(backoff_factors),
        cardinality(backoff_caps), cardinality(backoff_jitters), cardinality(rules),
        cardinality(timezones), cardinality(missed), cardinality(on_dead)]);
    perform scheduler.lock_schedules();
    perform scheduler.check_payload(payload) from unnest(payloads) as payload;
    perform scheduler.check_kind(kind, session_user) from unnest(kinds) as kind;
    select standing.name, standing.application into foreign_name, owner
    from scheduler.schedules as standing
    where standing.name = any(names) and standing.declared
      and standing.application <> application
    order by standing.name
    limit 1;
    if found then
        raise exception 'the schedule % belongs to application %, which declares it',
            foreign_name, owner
            using errcode = 'LP009',
            hint = format('choose another name, or let it go there before %s takes it', application);
    end if;
    -- In name order, as pausing and resuming lock them.
    perform from scheduler.schedules as standing
    where standing.name = any(names) or standing.application = application
    order by standing.name
    for update;
    return query
    with declared as materialized (
        insert into scheduler.schedules as standing (
            name, application, kind, queue, priority, payload, max_attempts, backoff_base,
            backoff_factor, backoff_cap, backoff_jitter, rule, timezone, missed, on_dead, next_at,
            created_at, changed_at)
        select new.name, application, new.kind, new.queue, new.priority, new.payload::jsonb,
            new.attempts, new.base, new.factor, new.cap, new.jitter, new.rule, new.timezone,
            new.missed, new.on_dead, scheduler.now(), scheduler.now(), scheduler.now()
        from unnest(
            names, kinds, queues, priorities, payloads, max_attempts, backoff_bases,
            backoff_factors, backoff_caps, backoff_jitters, rules, timezones, missed, on_dead
        ) as new (
            name, kind, queue, priority, payload, attempts, base, factor, cap, jitter, rule,
            timezone, missed, on_dead)
        order by new.name
        on conflict (name) do update
        set application = excluded.application, kind = excluded.kind, queue = excluded.queue,
            priority = excluded.priority, payload = excluded.payload,
            max_attempts = excluded.max_attempts, backoff_base = excluded.backoff_base,
            backoff_factor = excluded.backoff_factor, backoff_cap = excluded.backoff_cap,
            backoff_jitter = excluded.backoff_jitter, rule = excluded.rule,
            timezone = excluded.timezone, missed = excluded.missed, on_dead = excluded.on_dead,
            declared = true, source = excluded.source, changed_at = excluded.changed_at,
            next_at = case
                when standing.declared and standing.rule = excluded.rule
                    and standing.timezone = excluded.timezone then standing.next_at
                else excluded.next_at
            end
        where (
            standing.application, standing.kind, standing.queue, standing.priority,
            standing.payload, standing.max_attempts, standing.backoff_base,
            standing.backoff_factor, standing.backoff_cap, standing.backoff_jitter,
            standing.rule, standing.timezone, standing.missed, standing.on_dead, standing.source,
            standing.declared
        ) is distinct from (
            excluded.application, excluded.kind, excluded.queue, excluded.priority,
            excluded.payload, excluded.max_attempts, excluded.backoff_base,
            excluded.backoff_factor, excluded.backoff_cap, excluded.backoff_jitter,
            excluded.rule, excluded.timezone, excluded.missed, excluded.on_dead, excluded.source,
            true)
        returning standing.name, standing.kind, 'declare' as change
    ),
    gone as (
        update scheduler.schedules as standing
        set declared = false, changed_at = scheduler.now()
        where standing.application = application and standing.declared
          and standing.name <> all(names)
        returning standing.name, standing.kind, 'undeclare' as change
    ),
    changed as (
        select * from declared union all select * from gone
    ),
    audited as (
        insert into scheduler.audit (at, action, source, role, kind, tasks, schedule)
        select scheduler.now(), changed.change, session_user, session_user, changed.kind, 0,
            changed.name
        from changed
    )
    select changed.name, changed.change from changed order by changed.name;
end $$;

-- Plan occurrences and move their schedules on; returns each task with its schedule and due time.
--
-- For a worker, which may not create tasks otherwise: it has what a schedule's row says.
--
-- Why each is planned once, however many planners computed it: a schedule's row is locked, and what
-- the planner had read of it is compared with its newest version (READ COMMITTED checks the WHERE
-- clause again after the lock). Of two planners that read the same next_at the first moves it on, and
-- the second finds another; one that comes while the row is locked passes it over. The occurrence
-- and the new next_at are committed together, so a planner may die anywhere. Should the same due time
-- come up again all the same, because the database's clock was set back and the schedule resumed,
-- then the index on (schedule, occurrence) has the last word.
--
-- A dead occurrence that an operator requeues may run beside another: with on_dead = 'continue'
-- later ones were planned meanwhile, and the operator asked for it.
--
-- An occurrence is due at its due time, also when that was missed. It is not counted against its
-- source's cap, which would stop a schedule for what others of the source do.
create function scheduler.plan_occurrences(
    names text[], rules text[], timezones text[], was_next_at timestamptz[],
    occurrences timestamptz[], following timestamptz[]
) returns table (task bigint, schedule text, occurrence timestamptz, woken text)
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
-- A schedule named twice would have two occurrences at once.
select scheduler.check_arrays('schedule', names, array[
    cardinality(rules), cardinality(timezones), cardinality(was_next_at),
    cardinality(occurrences), cardinality(following)]);
with mine as materialized (
    select schedule.name, schedule.kind, schedule.queue, schedule.priority, schedule.payload,
        schedule.max_attempts, schedule.backoff_base, schedule.backoff_factor,
        schedule.backoff_cap, schedule.backoff_jitter, schedule.source, computed.occurrence,
        computed.next_at
    from unnest(
        names, rules, timezones, was_next_at,
        occurrences, following
    ) as computed (name, rule, timezone, was_next_at, occurrence, next_at)
    join scheduler.schedules as schedule
      on schedule.name = computed.name and schedule.rule = computed.rule
     and schedule.timezone = computed.timezone and schedule.next_at = computed.was_next_at
     and schedule.declared and not schedule.paused
    order by schedule.name
    for update of schedule skip locked
),
advanced as (
    update scheduler.schedules as schedule
    set next_at = mine.next_at
    from mine
    where schedule.name = mine.name
),
planned as (
    insert into scheduler.tasks as task (
        kind, queue, priority, payload, next_run_at, max_attempts, backoff_base, backoff_factor,
        backoff_cap, backoff_jitter, schedule, occurrence, source, counted, enqueued_at)
    select kind, queue, priority, payload, occurrence, max_attempts, backoff_base, backoff_factor,
        backoff_cap, backoff_jitter, name, occurrence, source, false, scheduler.now()
    from mine
    where occurrence is not null
    on conflict (schedule, occurrence) where schedule is not null do nothing
    returning task.id, task.schedule, task.occurrence, task.queue
)
select id, schedule, occurrence, scheduler.wake(queue, occurrence)::text from planned
$$;

-- Let schedules plan nothing until they are resumed; returns the names of those that exist. What is
-- planned already still runs.
create function scheduler.pause_schedules(names text[], stated_source text default null)
    returns setof text
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with mine as materialized (
    select name, kind, paused
    from scheduler.schedules
    where name = any(names)
    order by name
    for update
),
done as (
    update scheduler.schedules as schedule
    set paused = true, changed_at = scheduler.now()
    from mine
    where schedule.name = mine.name and not mine.paused
),
audited as (
    insert into scheduler.audit (at, action, source, role, kind, tasks, schedule)
    select scheduler.now(), 'pause', scheduler.source_of(stated_source), session_user, kind, 0, name
    from mine
    where not paused
)
select name from mine
$$;

-- Let paused schedules go on from now; returns the names of those that exist. What was due during
-- the pause is not caught up. A schedule whose source may not enqueue its kind any more is refused.
create function scheduler.resume_schedules(names text[], stated_source text default null)
    returns setof text
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
select scheduler.lock_schedules();
select scheduler.check_kind(kind, source)
from scheduler.schedules
where name = any(names) and paused;
with mine as materialized (
    select name, kind, paused
    from scheduler.schedules
    where name = any(names)
    order by name
    for update
),
done as (
    update scheduler.schedules as schedule
    set paused = false, next_at = scheduler.now(), changed_at = scheduler.now()
    from mine
    where schedule.name = mine.name and mine.paused
),
audited as (
    insert into scheduler.audit (at, action, source, role, kind, tasks, schedule)
    select scheduler.now(), 'resume', scheduler.source_of(stated_source), session_user, kind, 0, name
    from mine
    where paused
)
select name from mine
$$;

-- Plan an occurrence that is due now, whatever the schedule's rule says; returns its task, and whether
-- it is new. Nothing for a schedule that does not exist.
--
-- It is an occurrence like the others: the task is the schedule's source's and not counted against its
-- cap, the next one is not planned while it waits or runs, and should one be under way already then
-- that is the answer, so that to ask twice is to ask once. Asking makes a task, so the kind's
-- restriction binds who asks, and the schedule's source as well, which may have lost its right since.
-- A paused schedule runs, since somebody asks for it; one that a dead letter stops does not, or a later
-- run would be over before an earlier one.
--
-- Why it cannot come beside an occurrence that a planner is about to plan: a planner that has the row
-- is waited for, and its task is seen by the statement after the lock, whose snapshot is taken then. A
-- planner that read the row before and comes after finds another next_at. That moves back by a
-- microsecond, which leaves no due time out and brings none in, as rules have whole seconds.
create function scheduler.run_schedule(schedule_name text, stated_source text default null)
    returns table (task bigint, created boolean)
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
declare
    standing scheduler.schedules;
    asking text := scheduler.source_of(stated_source);
    wanted timestamptz := scheduler.now();
    dead bigint;
    found_id bigint;
begin
    select * into standing from scheduler.schedules where name = schedule_name for update;
    if not found then
        return;
    end if;
    perform scheduler.check_kind(standing.kind, asking);
    perform scheduler.check_kind(standing.kind, standing.source);
    if not standing.declared then
        raise exception 'no application declares the schedule % any more', schedule_name
            using errcode = 'LP009', hint = 'a worker that starts declares what its code has';
    end if;
    select min(id) into found_id from scheduler.tasks
    where schedule = schedule_name and status in ('pending', 'running');
    if found_id is null and standing.on_dead = 'stop' then
        select min(id) into dead from scheduler.tasks
        where schedule = schedule_name and status = 'dead';
        if dead is not null then
            raise exception 'the schedule % is stopped by the dead letter %', schedule_name, dead
                using errcode = 'LP009', hint = 'requeue or discard that first';
        end if;
    end if;
    if found_id is null then
        insert into scheduler.tasks as new (
            kind, queue, priority, payload, next_run_at, max_attempts, backoff_base,
            backoff_factor, backoff_cap, backoff_jitter, schedule, occurrence, source, counted,
            enqueued_at)
        values (
            standing.kind, standing.queue, standing.priority, standing.payload, wanted,
            standing.max_attempts, standing.backoff_base, standing.backoff_factor,
            standing.backoff_cap, standing.backoff_jitter, schedule_name, wanted, standing.source,
            false, scheduler.now())
        on conflict do nothing
        returning new.id into found_id;
        if found then
            update scheduler.schedules set next_at = next_at - interval '1 microsecond'
            where name = schedule_name;
            insert into scheduler.audit (
                at, action, source, role, kind, tasks, first_task, last_task, schedule)
            values (scheduler.now(), 'run-now', asking, session_user, standing.kind, 1, found_id,
                found_id, schedule_name);
            perform scheduler.wake(standing.queue, wanted);
            return query select found_id, true;
            return;
        end if;
        -- The rule had one due in this very microsecond, and it is over.
        select id into found_id from scheduler.tasks
        where schedule = schedule_name and occurrence = wanted;
    end if;
    return query select found_id, false;
end $$;

-- Restrict a kind to these sources, in place of those so far; none opens it to all.
--
-- What other sources' schedules would plan of it is stopped as well: they are paused, and returned.
--
-- Two such changes take place one after the other: side by side they would add their sources up, and
-- open the kind to more than either of them wants. The lock is that of the declarations, and each
-- statement here reads anew: a declaration that checked the kind before it was restricted has
-- committed its schedules when the last statement looks for them.
create function scheduler.restrict_kind(restricted text, allowed text[]) returns setof text
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
declare
    wanted text[];
    standing text[];
begin
    if restricted is null or length(restricted) not between 1 and 100 or allowed is null
        or exists (
            select from unnest(allowed) as source
            where source is null or length(source) not between 1 and 200)
    then
        raise exception 'a kind has a name of 1 to 100 characters, each of its sources 1 to 200'
            using errcode = '22023';
    end if;
    perform scheduler.lock_schedules();
    wanted := array(select distinct source from unnest(allowed) as source order by source);
    standing := array(
        select source from scheduler.kind_sources where kind = restricted order by source);
    if wanted = standing then
        return;
    end if;
    delete from scheduler.kind_sources where kind = restricted;
    insert into scheduler.kind_sources (kind, source)
    select restricted, source from unnest(wanted) as source;
    insert into scheduler.audit (at, action, source, role, kind, tasks, detail)
    values (scheduler.now(), 'restrict', session_user, session_user, restricted, 0,
        coalesce(nullif(array_to_string(wanted, ', '), ''), 'open to all'));
    return query select scheduler.pause_schedules(array(
        select name from scheduler.schedules
        where kind = restricted and declared and not paused
          and wanted <> '{}' and source <> all(wanted)));
end $$;

revoke all on function scheduler.lock_schedules, scheduler.declare_schedules,
    scheduler.plan_occurrences, scheduler.pause_schedules, scheduler.resume_schedules,
    scheduler.run_schedule, scheduler.restrict_kind from public;
