-- Stores an answer: the only write of a request, in the transaction of the handler's own writes.
-- The primary key is the guard of "at most one effect".
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    empty for the effect, the fingerprint for a refusal
--   $5 bytea                    the request's fingerprint
--   $6 smallint, $7 bytea, $8 bytea   status, headers, body
--   $9 timestamptz              when the claim's transaction began
--   $10 float8                  lifetime in seconds
-- If this is no longer the claim's transaction, the handler has ended it by itself; then
-- `expires_at` is null and the server refuses (23502) before anything commits.
INSERT INTO idem.records
       (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8,
        pg_catalog.clock_timestamp(),
        CASE WHEN pg_catalog.now() = $9
             THEN pg_catalog.clock_timestamp() + $10 * interval '1 second'
         END)
