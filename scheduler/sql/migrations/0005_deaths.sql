-- The deaths of tasks: a log that can be followed, and hooks that are told of each.
--
-- A death and what is to be delivered of it are written by the transaction in which the task dies, so
-- neither can be lost, whoever is or is not there to deliver. A trigger does it, not the two statements
-- that let tasks die, so that it holds for an operator's own SQL as well, and asks no right of a worker.
-- Its condition is looked at for each update of a status and is false for all others.

create table scheduler.deaths (
    id          bigint generated always as identity primary key,
    -- What has been seen by a snapshot, and what not, is decided by this and by nothing else: numbers
    -- and times are given out before the commit, and commits come in another order.
    died_in     xid8 not null default pg_current_xact_id(),
    task_id     bigint not null,
    lease_token bigint not null,
    kind        text not null,
    attempts    integer not null,
    last_error  text not null,
    died_at     timestamptz not null
);

create index deaths_in on scheduler.deaths (died_in, id);

-- Who is told of deaths from the row's commit on.
create table scheduler.dead_letter_hooks (
    name       text primary key check (name ~ '^[A-Za-z0-9_.:-]{1,100}$'),
    created_at timestamptz not null
);

-- What is yet to be delivered; a row is deleted once it is. The hook's name is no foreign key: a death
-- must not fail because its hook is being removed at this moment.
create table scheduler.deliveries (
    id         bigint generated always as identity primary key,
    hook       text not null,
    death      bigint not null references scheduler.deaths,
    attempts   integer not null default 0,
    given_up   boolean not null default false, -- this is, or was, its last attempt
    next_at    timestamptz not null,
    last_error text,
    unique (death, hook)
);

-- Without those that were given up, which stay until somebody tries them again: they would be the first
-- that each look for a due one reads.
create index deliveries_due on scheduler.deliveries (hook, next_at, id) where not given_up;
create index deliveries_given_up on scheduler.deliveries (hook, next_at, id) where given_up;

create function scheduler.record_death() returns trigger
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp as $$
declare
    recorded bigint;
begin
    insert into scheduler.deaths (task_id, lease_token, kind, attempts, last_error, died_at)
    values (new.id, new.lease_token, new.kind, new.attempts, new.last_error, new.finished_at)
    returning id into recorded;
    insert into scheduler.deliveries (hook, death, next_at)
    select name, recorded, scheduler.now() from scheduler.dead_letter_hooks;
    return null;
end $$;

create trigger deaths_are_recorded
    after update of status on scheduler.tasks
    for each row when (new.status = 'dead' and old.status <> 'dead')
    execute function scheduler.record_death();

insert into scheduler.deaths (task_id, lease_token, kind, attempts, last_error, died_at)
select id, lease_token, kind, attempts, last_error, finished_at
from scheduler.tasks
where status = 'dead'
order by finished_at, id;

-- Tell a hook of deaths from now on; does nothing for one that is told already.
create function scheduler.register_hook(hook text) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with added as (
    insert into scheduler.dead_letter_hooks (name, created_at) values (hook, scheduler.now())
    on conflict (name) do nothing
    returning name
)
insert into scheduler.audit (at, action, source, role, tasks, detail)
select scheduler.now(), 'add-hook', session_user, session_user, 0, name from added
$$;

-- Tell a hook of nothing any more, and forget what it has not been told; whether there was one.
--
-- A task that dies at this very moment may leave a delivery behind. Nobody asks for it, and the next
-- time that a hook of the name is forgotten it goes, too.
create function scheduler.forget_hook(hook text) returns boolean
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
with gone as (
    delete from scheduler.dead_letter_hooks where name = forget_hook.hook returning name
),
undelivered as (
    delete from scheduler.deliveries as delivery
    where delivery.hook = forget_hook.hook
    returning delivery.id
),
audited as (
    insert into scheduler.audit (at, action, source, role, tasks, detail)
    select scheduler.now(), 'forget-hook', session_user, session_user,
        (select count(*) from undelivered), name
    from gone
)
select exists (select from gone)
$$;

-- Forget a delivery that was made, whoever may have taken it since.
create function scheduler.delivered(delivery bigint) returns void
    language sql security definer
    set search_path = pg_catalog, pg_temp as $$
delete from scheduler.deliveries where id = delivery
$$;

revoke all on function scheduler.record_death, scheduler.register_hook, scheduler.forget_hook,
    scheduler.delivered from public;
