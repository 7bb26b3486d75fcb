-- Stores an answer: the only write of a request, in the transaction of the handler's own writes.
-- The primary key is the guard of "at most one effect".
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    empty for the effect, the fingerprint for a refusal
--   $5 bytea                    the request's fingerprint
--   $6 smallint, $7 bytea, $8 bytea   status, headers, body
--   $9 timestamptz              when the claim's transaction began
--   $10 float8                  lifetime in seconds
-- Two things make the server refuse (23502) before anything commits:
-- `created_at` is null if the other kind of record stands there, the refusal of this request or
-- the key's effect, which was committed between the claim's snapshot and its lock;
-- `expires_at` is null if this is no longer the claim's transaction, since the handler has ended
-- it by itself.
INSERT INTO idem.records
       (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8,
        CASE WHEN NOT EXISTS (
             SELECT FROM idem.records
              WHERE scope = $1
                AND operation = $2
                AND key = $3
                AND request = CASE WHEN $4 = ''::bytea THEN $5 ELSE ''::bytea END
                AND expires_at > pg_catalog.clock_timestamp())
             THEN pg_catalog.clock_timestamp()
         END,
        CASE WHEN pg_catalog.now() = $9
             THEN pg_catalog.clock_timestamp() + $10 * interval '1 second'
         END)
