-- The kinds that only some sources may enqueue, and which.
select kind, array_agg(source order by source) as sources
from scheduler.kind_sources
group by kind
order by kind
