-- Write down how many requests were refused, for each reason and token.
select scheduler.record_refusals(%(sources)s::text[], %(counts)s::bigint[], %(details)s::text[])
