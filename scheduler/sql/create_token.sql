-- Make a token, known by the digest of its secret.
select scheduler.create_token(
    %(name)s, %(digest)s, %(source)s, %(scopes)s::text[], %(kinds)s::text[])
