-- The server's clock at this moment, in seconds since 1970.
select extract(epoch from clock_timestamp())::double precision
