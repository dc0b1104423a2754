-- Make all deliveries of a hook that were given up due again, with all their attempts; their ids.
update scheduler.deliveries
set attempts = 0, given_up = false, next_at = scheduler.now()
where hook = %(hook)s and given_up
returning id
