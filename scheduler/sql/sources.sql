-- The sources that have, or had, a cap.
select name, max_outstanding, outstanding from scheduler.sources order by name
