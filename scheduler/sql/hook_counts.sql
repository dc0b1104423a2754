-- Each hook, how many deliveries wait and how many were given up, and why the latest failed one did.
--
-- Of each sort at most so many are counted and looked at as `most` says, from its index (null: all): a
-- hook that nobody delivers to may have millions.
select hook.name, waiting.deliveries as waiting, given_up.deliveries as given_up, latest.last_error
from scheduler.dead_letter_hooks as hook
cross join lateral (
    select count(*) as deliveries
    from (
        select
        from scheduler.deliveries as delivery
        where delivery.hook = hook.name and not delivery.given_up
        order by delivery.next_at, delivery.id
        limit %(most)s::bigint
    ) as counted
) as waiting
cross join lateral (
    select count(*) as deliveries
    from (
        select
        from scheduler.deliveries as delivery
        where delivery.hook = hook.name and delivery.given_up
        order by delivery.next_at, delivery.id
        limit %(most)s::bigint
    ) as counted
) as given_up
left join lateral (
    select newest.last_error
    from (
        (select delivery.next_at, delivery.last_error
        from scheduler.deliveries as delivery
        where delivery.hook = hook.name and not delivery.given_up
        order by delivery.next_at desc, delivery.id desc
        limit %(most)s::bigint)
        union all
        (select delivery.next_at, delivery.last_error
        from scheduler.deliveries as delivery
        where delivery.hook = hook.name and delivery.given_up
        order by delivery.next_at desc, delivery.id desc
        limit %(most)s::bigint)
    ) as newest
    where newest.last_error is not null
    order by newest.next_at desc
    limit 1
) as latest on true
order by hook.name
