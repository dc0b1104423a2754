-- Make the schedules of an application what its code says; returns what was changed, and how.
select schedule, change
from scheduler.declare_schedules(
    %(application)s, %(names)s::text[], %(kinds)s::text[], %(queues)s::text[],
    %(priorities)s::smallint[], %(payloads)s::text[], %(max_attempts)s::integer[],
    %(bases)s::double precision[], %(factors)s::double precision[], %(caps)s::double precision[],
    %(jitters)s::double precision[], %(rules)s::text[], %(timezones)s::text[],
    %(missed)s::text[], %(on_dead)s::text[])
