-- Let only these sources enqueue a kind; none opens it to all. Returns the schedules paused by it.
select scheduler.restrict_kind(%(kind)s, %(sources)s::text[])
