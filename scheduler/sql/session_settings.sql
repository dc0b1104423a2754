-- What a worker's session is set to: its isolation level, and for how many ms it may idle in one.
--
-- The former as of this very statement, a transaction by itself.
select
    current_setting('transaction_isolation'),
    (extract(epoch from current_setting('idle_in_transaction_session_timeout')::interval) * 1000)::bigint
