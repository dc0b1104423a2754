-- Put dead tasks back to work, with all their attempts again; returns the task ids.
select scheduler.requeue(%(tasks)s::bigint[], %(source)s)
