-- Tell a hook of nothing any more; whether there was one.
select scheduler.forget_hook(%(hook)s)
