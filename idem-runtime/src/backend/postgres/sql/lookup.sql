-- Finds the key's effect and the refusal of one request, live or expired: two rows at most.
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    the request's fingerprint
SELECT request,
       fingerprint,
       status,
       headers,
       body,
       expires_at > pg_catalog.clock_timestamp() AS live
  FROM idem.records
 WHERE scope = $1
   AND operation = $2
   AND key = $3
   AND request IN (''::bytea, $4)
