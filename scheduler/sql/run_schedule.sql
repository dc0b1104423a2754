-- Plan an occurrence of a schedule that is due now; its task, and whether it is new.
select task, created from scheduler.run_schedule(%(name)s, %(source)s)
