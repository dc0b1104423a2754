-- How many tasks were enqueued and how many died, as the server's own statistics have counted it.
--
-- Two numbers out of shared memory, however many rows there are. They start at 0 again after a crash, a
-- failover or pg_stat_reset(), as counters may. A session reports what it did within ten seconds.
select pg_stat_get_tuples_inserted('scheduler.tasks'::regclass) as enqueued,
    pg_stat_get_tuples_inserted('scheduler.deaths'::regclass) as deaths
