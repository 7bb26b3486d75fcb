-- Puts a row in the place of this request's refusal: fails (23505 or 40001) if one was committed
-- that the transaction's snapshot hides. For the stricter isolation levels, before the effect.
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    the request's fingerprint
INSERT INTO idem.records
       (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
VALUES ($1, $2, $3, $4, $4, 0, '', '', pg_catalog.now(), pg_catalog.now())
