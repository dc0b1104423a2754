-- Cancel tasks that are waiting or running; returns their ids and what each was.
select task, was from scheduler.cancel(%(tasks)s::bigint[], %(source)s)
