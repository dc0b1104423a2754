-- Enqueue tasks of one kind, all or none; returns their ids in the order of the payloads.
--
-- One call for one task or thousands. A null run_at means now, plus the delay. With the caller's own
-- connection the rows are part of the caller's transaction and become visible to workers exactly
-- when the caller's other writes do. What is checked and counted is said in 0002_access.sql.
select scheduler.enqueue(
    %(kind)s, %(queue)s, %(priority)s::smallint, %(payloads)s::text[], %(run_at)s::timestamptz,
    %(delay)s::interval, %(max_attempts)s, %(base)s, %(factor)s, %(cap)s, %(jitter)s, %(source)s)
