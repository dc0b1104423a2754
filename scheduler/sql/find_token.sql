-- Whose token this is, by its digest; no row for an unknown or revoked one.
select name, source, scopes, kinds from scheduler.find_token(%(digest)s)
