-- Prepared transactions of this database, and for how long they have been so.
select format('%%s of %%s for %%s s', quote_literal(gid), owner,
    extract(epoch from clock_timestamp() - prepared)::bigint)
from pg_prepared_xacts
where database = current_database() and prepared < clock_timestamp() - %(older)s::interval
order by prepared
