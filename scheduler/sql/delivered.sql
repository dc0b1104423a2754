-- Forget a delivery that was made.
select scheduler.delivered(%(delivery)s)
