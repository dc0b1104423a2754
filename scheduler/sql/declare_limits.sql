-- Make the limits of these kinds what the code says; a null limit means none.
select scheduler.declare_limits(%(kinds)s::text[], %(limits)s::integer[])
