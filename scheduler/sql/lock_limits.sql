-- Take hold of the limits of the given kinds, to the end of this transaction.
--
-- The first statement of a claim that serves limited kinds.
--
-- One claim at a time per limited kind: others skip it and serve their other kinds. What was got is
-- noted for claim.sql in a setting that ends with the transaction. A statement of its own, because
-- claim.sql must count under a snapshot that is later than the lock. Not in a pipeline with it: a
-- server that waits for the rest of one is not idle, and would wait for ever for a worker that was
-- stopped; so the server ends this transaction after one lease.
with locked as materialized (
    select kind
    from scheduler.kind_limits
    where kind = any(%(kinds)s::text[])
    order by kind
    for update skip locked
)
select
    set_config('idle_in_transaction_session_timeout', %(idle)s, true),
    set_config('scheduler.limits', coalesce(array_agg(kind), '{}')::text, true)
from locked
