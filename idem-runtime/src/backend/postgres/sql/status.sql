-- Looks at a key's effect or, if it has none, at its latest refusal: one live record at most,
-- with what remains of its lifetime in seconds.
--   $1 text, $2 text, $3 text   scope, operation, key
SELECT request,
       fingerprint,
       status,
       headers,
       body,
       pg_catalog.to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS created,
       pg_catalog.to_char(expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS expires,
       extract(epoch FROM expires_at - pg_catalog.clock_timestamp())::float8 AS remaining
  FROM idem.records
 WHERE scope = $1
   AND operation = $2
   AND key = $3
   AND expires_at > pg_catalog.clock_timestamp()
 ORDER BY request <> ''::bytea, created_at DESC
 LIMIT 1
