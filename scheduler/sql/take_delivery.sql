-- Take the next due delivery of a hook, to be made within `hold`; returns it with its death.
--
-- The row is the lock, as for tasks: SKIP LOCKED lets any number of deliverers share a hook. The attempt
-- is counted here, before it is made, so one that kills its deliverer counts too and the number of them
-- is bounded; until `hold` is over nobody else takes it, and after that anybody may. The last attempt also
-- takes the row out of deliveries_due, whatever becomes of it: a look reads nothing that was given up.
with due as materialized (
    select id
    from scheduler.deliveries
    where hook = %(hook)s and not given_up and next_at <= scheduler.now()
    order by next_at, id
    limit 1
    for update skip locked
),
taken as (
    update scheduler.deliveries as delivery
    set attempts = delivery.attempts + 1,
        given_up = delivery.attempts + 1 >= %(most_attempts)s,
        next_at = scheduler.now() + %(hold)s::interval
    from due
    where delivery.id = due.id
    returning delivery.id, delivery.death, delivery.attempts
)
select taken.id, taken.attempts, death.id, death.task_id, death.lease_token, death.kind,
    task.payload::text, death.attempts, death.last_error, task.enqueued_at, death.died_at
from taken
join scheduler.deaths as death on death.id = taken.death
left join scheduler.tasks as task on task.id = death.task_id
