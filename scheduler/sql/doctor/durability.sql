-- The settings without which a crash may lose or damage what was committed.
select current_setting('fsync')::boolean, current_setting('full_page_writes')::boolean,
    current_setting('synchronous_commit')
