-- Complete attempts that are still held, and claim in the same statement: one commit for both.
--
-- The parts are complete.sql and claim.sql as they stand (scheduler/statements.py puts them in), each
-- correct by its own argument. Together:
--
-- They touch different rows. Both see one snapshot, in which what is completed was running and what is
-- claimed was pending; a row that became the other since is locked by whoever changed it, and checked
-- again or skipped. Neither waits for a lock, so their order, which is the server's choice, cannot
-- matter, and nothing can deadlock.
--
-- Kinds with a limit are passed over, as in any claim without lock_limits.sql before it. Nor would
-- such a claim see the places that these completions free: both see one snapshot.
--
-- Either both are written or neither is. A worker that hears no reply writes the completions again, as
-- ever, and gives back what that claim may have taken.
with
{complete as completed},
{claim as claimed}
select task_id, null, null, null, null, null, null, null, null, null, null from completed
union all
select * from claimed
