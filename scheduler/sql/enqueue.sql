-- Enqueue tasks; returns their ids in the order of the arrays.
--
-- One statement for one task or thousands: all are enqueued or none. A null run_at means now. With
-- the caller's own connection the rows are part of the caller's transaction and become visible to
-- workers exactly when the caller's other writes do.
insert into scheduler.tasks (
    kind, payload, next_run_at, max_attempts,
    backoff_base, backoff_factor, backoff_cap, backoff_jitter, enqueued_at)
select
    new.kind, new.payload::jsonb, coalesce(new.run_at, scheduler.now() + new.delay), new.max_attempts,
    new.backoff_base, new.backoff_factor, new.backoff_cap, new.backoff_jitter, scheduler.now()
from unnest(
    %(kinds)s::text[], %(payloads)s::text[], %(run_ats)s::timestamptz[], %(delays)s::interval[],
    %(max_attempts)s::integer[], %(bases)s::double precision[], %(factors)s::double precision[],
    %(caps)s::double precision[], %(jitters)s::double precision[]
) with ordinality as new (
    kind, payload, run_at, delay, max_attempts,
    backoff_base, backoff_factor, backoff_cap, backoff_jitter, position)
order by new.position
returning id
