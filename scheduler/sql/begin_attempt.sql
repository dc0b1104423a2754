-- The first statement of a transactional handler's transaction: its limits, and its mark.
--
-- The server ends a transaction that idles for longer than its own kind's lease, and a wait for a
-- lock after half of it: a worker stopped in the middle of a transaction must not keep its locks.
-- All three settings are local: they end with the transaction. So the completion can see by the mark
-- that it is in the transaction that the worker began, and not in one that the handler put in its
-- place with a COMMIT of its own.
select
    set_config('idle_in_transaction_session_timeout', %(idle)s, true),
    set_config('lock_timeout', %(lock)s, true),
    set_config('scheduler.attempt', %(mark)s, true)
