-- Let schedules plan nothing until they are resumed; returns the names of those that exist.
select scheduler.pause_schedules(%(names)s::text[], %(source)s)
