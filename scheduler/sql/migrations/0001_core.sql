-- The core: tasks, the run log, and the few functions that every statement shares.
--
-- A task moves only along these steps; the word behind each is the run-log outcome written by the
-- statement that makes the step (none where no attempt ends):
--
--   (enqueue)  -> pending
--   pending    -> running     claim
--   running    -> running     renew: only lease_expires_at changes
--   running    -> completed   completed
--   running    -> pending     failed, released, snoozed, reclaimed
--   running    -> dead        failed, reclaimed: the attempt that reached max_attempts
--   running    -> cancelled   cancelled
--   pending    -> cancelled
--   dead       -> pending     requeue: attempts start again at 0
--   dead       -> discarded
--
-- The constraints below make every other *state* impossible. Which *step* is taken is decided by
-- the WHERE clause of each statement while it holds the row's lock: the row is the lock.

-- The only clock that a comparison may use. A SQL function of this form is inlined by the planner,
-- so an index on next_run_at still serves `next_run_at <= scheduler.now()`. Tests replace this one
-- function to make time an input.
create function scheduler.now() returns timestamptz
    language sql stable parallel safe
    return statement_timestamp();

-- How much earlier a task counts as due for each level of its priority (0 to 3, 1 is normal). It
-- bounds starvation: a due task of any level goes before whatever becomes due this much later.
create function scheduler.priority_credit() returns interval
    language sql immutable parallel safe
    return interval '1 minute';

create table scheduler.settings (
    name  text primary key,
    value text not null
);

insert into scheduler.settings (name, value) values ('clock', 'statement_timestamp()');

-- What holds for one column alone is said by its type. An UPDATE looks at that only for the columns that
-- it sets, but at all constraints of its table, which are read and prepared anew for each statement: for
-- one row these took as long as all the rest of the UPDATE.
create domain scheduler.kind_name as text
    constraint kind_is_short check (length(value) between 1 and 100);
create domain scheduler.queue_name as text
    constraint queue_is_short check (length(value) between 1 and 100);
create domain scheduler.priority_level as smallint
    constraint priority_is_a_level check (value between 0 and 3);
create domain scheduler.key_scope as text
    constraint key_has_a_scope check (value in ('started', 'finished', 'period'));
create domain scheduler.backoff_seconds as double precision
    constraint backoff_is_bounded check (value between 0.000001 and 31536000);
create domain scheduler.backoff_factor as double precision
    constraint backoff_is_bounded check (value >= 1 and value < 'Infinity');
create domain scheduler.backoff_jitter as double precision
    constraint backoff_is_bounded check (value between 0 and 0.5);
-- Within what clients can read: a claim that returns one row its worker cannot decode is lost as a whole,
-- again and again.
create domain scheduler.readable_time as timestamptz
    constraint time_is_readable check (
        value >= timestamptz '1900-01-01 00:00:00+00' and value < timestamptz '9000-01-01 00:00:00+00');

create table scheduler.tasks (
    id               bigint generated always as identity primary key,
    kind             scheduler.kind_name not null,
    queue            scheduler.queue_name not null default 'default',
    priority         scheduler.priority_level not null default 1,
    payload          jsonb not null,
    status           text not null default 'pending',
    next_run_at      scheduler.readable_time not null,
    attempts         integer not null default 0,
    max_attempts     integer not null,
    lease_token      bigint not null default 0,
    lease_owner      text,
    lease_expires_at timestamptz,
    claimed_at       timestamptz,
    backoff_base     scheduler.backoff_seconds not null,
    backoff_factor   scheduler.backoff_factor not null,
    backoff_cap      scheduler.backoff_seconds not null,
    backoff_jitter   scheduler.backoff_jitter not null,
    unique_key       text,
    unique_until     scheduler.key_scope,
    schedule         text,
    occurrence       scheduler.readable_time,
    source           text not null default session_user,
    counted          boolean not null default false,
    last_error       text,
    enqueued_at      timestamptz not null,
    finished_at      timestamptz,

    constraint status_is_known check (
        status in ('pending', 'running', 'completed', 'dead', 'cancelled', 'discarded')),
    constraint key_has_a_scope check ((unique_key is null) = (unique_until is null)),
    constraint occurrence_is_of_a_schedule check ((schedule is null) = (occurrence is null)),
    constraint running_iff_leased check (
        (status = 'running') = (lease_owner is not null)
        and (status = 'running') = (lease_expires_at is not null)
        and (status = 'running') = (claimed_at is not null)),
    constraint running_was_claimed check (
        status <> 'running' or (attempts >= 1 and lease_token >= 1)),
    constraint attempts_within_cap check (
        attempts >= 0 and max_attempts >= 1 and attempts <= max_attempts),
    constraint pending_has_an_attempt_left check (
        status <> 'pending' or attempts < max_attempts),
    constraint dead_is_exhausted_and_says_why check (
        status <> 'dead' or (attempts >= max_attempts and last_error is not null)),
    constraint finished_iff_over check (
        (finished_at is not null) = (status in ('completed', 'dead', 'cancelled', 'discarded'))),
    constraint backoff_is_bounded check (backoff_cap >= backoff_base)
) with (
    -- Each task leaves three or four dead rows behind, in this table and its indexes, and every look
    -- at all that is due passes them. The defaults wait for a fifth of the table, which with a million finished tasks
    -- in it is 200,000 dead rows among the few that are due.
    autovacuum_vacuum_scale_factor = 0.01,
    autovacuum_vacuum_threshold = 500,
    autovacuum_analyze_scale_factor = 0.02
);

-- One index per question the hot path asks; a finished task is in neither.
create index tasks_due on scheduler.tasks (kind, priority, next_run_at, id)
    where status = 'pending';
create index tasks_leased on scheduler.tasks (lease_expires_at) where status = 'running';
-- At most one live task per kind and key. `started` means claimed for the first time: a task that
-- comes back from a failure or a reclaim does not take its key again, which another may have by
-- then, or one such row would abort the whole batch that it comes back in. A `period` key carries
-- its period in its text, so it is live for ever and nothing has to clear it.
create unique index tasks_key on scheduler.tasks (kind, unique_key)
    where unique_key is not null and (
        unique_until = 'started' and status = 'pending' and lease_token = 0
        or unique_until = 'finished' and status in ('pending', 'running')
        or unique_until = 'period');
-- Whatever else goes wrong, one occurrence of a schedule is one task.
create unique index tasks_occurrence on scheduler.tasks (schedule, occurrence)
    where schedule is not null;
-- The dead letters in their order, of all kinds and of one; a task is in neither until it dies.
create index tasks_dead on scheduler.tasks (finished_at, id) where status = 'dead';
create index tasks_dead_kind on scheduler.tasks (kind, finished_at, id) where status = 'dead';
-- What one source has, newest first (list_tasks.sql). Every task is in it when it is enqueued and when it
-- ends, which writes 85 bytes more of WAL each time; a claim or a renewal, which would be one more entry
-- in a whole index each time, writes none.
create index tasks_source on scheduler.tasks (source, id) where status <> 'running';

-- At how many leases of a kind at once no more of its tasks are claimed. A kind that is not here has
-- no limit. The row is also the lock under which such a kind is claimed. To lock a row asks for the
-- right to update some column of it: `lockable` is that column, which nobody reads, so that a worker
-- can lock a limit and not change it.
create table scheduler.kind_limits (
    kind        text primary key,
    max_running integer not null check (max_running >= 1),
    lockable    boolean not null default true
);

-- Where the earliest waiting task of a kind and priority was when some worker looked: find_floors.sql.
create table scheduler.claim_floors (
    kind        text not null,
    priority    smallint not null,
    next_run_at timestamptz not null,
    id          bigint not null,
    found_at    timestamptz not null,

    primary key (kind, priority)
) with (fillfactor = 25); -- a row changes twice a poll, within its page as long as that has room

create domain scheduler.attempt_outcome as text
    constraint outcome_is_known check (
        value in ('completed', 'failed', 'released', 'snoozed', 'reclaimed', 'cancelled'));

-- One row per finished attempt, written by the statement that ends the attempt, in its transaction:
-- the log and the task cannot disagree, and a row's token says who wrote the task's change.
create table scheduler.run_log (
    task_id     bigint not null,
    lease_token bigint not null,
    lease_owner text not null,
    attempt     integer not null,
    claimed_at  timestamptz not null,
    finished_at timestamptz not null,
    outcome     scheduler.attempt_outcome not null,
    error       text,

    primary key (task_id, lease_token, finished_at)
) partition by range (finished_at);

-- Takes what no monthly partition covers, so that ending an attempt never fails for want of one.
create table scheduler.run_log_rest partition of scheduler.run_log default;

-- By time, for what happened lately. BRIN, since rows arrive in this order: it has an entry for every 32
-- pages, not for every row, and adding a row writes nothing to it.
create index run_log_finished on scheduler.run_log using brin (finished_at)
    with (pages_per_range = 32, autosummarize = on);

-- Create the monthly partitions from this month to `ahead` months on. Safe to call at any time and
-- from many sessions: whoever does not get the lock leaves the work to whoever has it. A month
-- whose rows already went to run_log_rest stays there: moving them would block the queue. A new
-- partition locks the whole log: behind one long reader every completion would wait in line, so this
-- gives up soon instead (lock_not_available), to be called again.
--
-- Only the log's owner can do this, so it runs with the owner's rights, for any worker. The date style
-- is pinned too: under others a bound names its time zone by letters, which mean another zone when
-- they are read back (IST).
create function scheduler.add_run_log_partitions(ahead integer) returns integer
    language plpgsql security definer
    set search_path = pg_catalog, pg_temp
    set datestyle = 'ISO, YMD'
    set lock_timeout = '100ms' as $$
declare
    month date;
    name  text;
    added integer := 0;
begin
    if ahead is null or ahead not between 0 and 120 then
        raise exception 'partitions can be made for 0 to 120 months ahead, not %',
            coalesce(ahead::text, 'null') using errcode = '22023';
    end if;
    if not pg_try_advisory_xact_lock(hashtextextended('scheduler.run_log partitions', 0)) then
        return 0;
    end if;
    for month in
        select date_trunc('month', scheduler.now() at time zone 'UTC') + make_interval(months => n)
        from generate_series(0, ahead) as n
    loop
        name := 'run_log_' || to_char(month, 'YYYY_MM');
        continue when to_regclass('scheduler.' || name) is not null;
        continue when exists (
            select from scheduler.run_log_rest
            where finished_at >= month::timestamp at time zone 'UTC'
              and finished_at < (month + interval '1 month') at time zone 'UTC');
        execute format(
            'create table scheduler.%I partition of scheduler.run_log for values from (%L) to (%L)',
            name,
            month::timestamp at time zone 'UTC',
            (month + interval '1 month') at time zone 'UTC');
        added := added + 1;
    end loop;
    return added;
end $$;

-- How long a task waits after failed attempt number `attempts`: base * factor^(attempts-1), at most
-- cap, of which jitter may cut a share that is a pure function of task and token, so that anybody
-- can recompute it. Powers are compared as logarithms first: no attempt count overflows.
-- The jitter is divided last: it cannot underflow, which would be an error and abort the batch.
create function scheduler.retry_delay(
    base double precision, factor double precision, cap double precision, jitter double precision,
    attempts integer, task bigint, token bigint
) returns interval
    language sql immutable parallel safe
    return make_interval(secs =>
        case
            when (attempts - 1) * ln(factor) >= ln(cap / base) then cap
            else base * power(factor, attempts - 1)
        end
        * (4294967296 - jitter
            * ('x' || left(encode(sha256(convert_to(task || ':' || token, 'UTF8')), 'hex'), 8))
                ::bit(32)::bigint)
        / 4294967296);

-- Refuse the transaction of a worker that no longer holds the lease. SQLSTATE LP001.
create function scheduler.refuse_lost_lease(task bigint, token bigint) returns bigint
    language plpgsql as $$
begin
    raise exception 'task % is no longer held under token %', task, token
        using errcode = 'LP001';
end $$;

-- Refuse a completion outside the transaction that the worker began. SQLSTATE LP008.
create function scheduler.refuse_other_transaction(task bigint) returns bigint
    language plpgsql as $$
begin
    raise exception 'the handler of task % ended its transaction by itself: what it wrote is not tied'
        ' to the completion and may happen again', task
        using errcode = 'LP008';
end $$;
