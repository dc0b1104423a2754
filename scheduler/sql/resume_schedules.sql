-- Let paused schedules go on from now; returns the names of those that exist.
select scheduler.resume_schedules(%(names)s::text[], %(source)s)
