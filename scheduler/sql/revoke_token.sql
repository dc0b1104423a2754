-- Revoke a token; whether there was one to revoke.
select scheduler.revoke_token(%(name)s)
