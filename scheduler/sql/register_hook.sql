-- Tell a hook of deaths from now on; does nothing for one that is told already.
select scheduler.register_hook(%(hook)s)
