-- Put a delivery that failed off, unless another deliverer has taken it since.
update scheduler.deliveries
set next_at = scheduler.now() + %(delay)s::interval, last_error = %(error)s
where id = %(delivery)s and attempts = %(attempts)s
returning id
