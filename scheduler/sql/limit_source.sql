-- Set how many tasks a source may have outstanding; null means any number.
select scheduler.limit_source(%(source)s, %(cap)s::integer)
