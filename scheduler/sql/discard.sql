-- Give dead tasks up for good; returns the task ids.
select scheduler.discard(%(tasks)s::bigint[], %(source)s)
