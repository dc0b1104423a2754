-- Which transactions are over at this moment, as text that pg_visible_in_snapshot reads.
select pg_current_snapshot()::text
