-- Whether autovacuum runs, whether it may on scheduler.tasks, and at what share of dead rows.
select
    current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean as runs,
    coalesce(option ->> 'autovacuum_enabled', 'true')::boolean as enabled,
    coalesce(option ->> 'autovacuum_vacuum_scale_factor',
        current_setting('autovacuum_vacuum_scale_factor'))::double precision as share
from (
    select coalesce((select jsonb_object_agg(option_name, option_value)
                     from pg_options_to_table(reloptions)), '{}') as option
    from pg_class
    where oid = to_regclass('scheduler.tasks')
) as tasks
