-- All tokens, revoked ones too, without their digests.
select name, source, scopes, kinds, created_at, created_by, revoked_at
from scheduler.tokens
order by name
