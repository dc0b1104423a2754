-- The oldest dead letters in short, for people: without payloads, and of each error its first line.
select id, kind, attempts, split_part(last_error, E'\n', 1) as error, finished_at
from scheduler.tasks
where status = 'dead' and (%(kind)s::text is null or kind = %(kind)s)
order by finished_at, id
limit %(limit)s
