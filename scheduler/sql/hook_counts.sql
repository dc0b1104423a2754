-- Each hook, how many deliveries wait and how many were given up, and why the latest failed one did.
select hook.name, count(delivery.id) filter (where not delivery.given_up) as waiting,
    count(delivery.id) filter (where delivery.given_up) as given_up,
    (array_agg(delivery.last_error order by delivery.next_at desc)
        filter (where delivery.last_error is not null))[1] as last_error
from scheduler.dead_letter_hooks as hook
left join scheduler.deliveries as delivery on delivery.hook = hook.name
group by hook.name
order by hook.name
