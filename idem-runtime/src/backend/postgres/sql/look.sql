-- Looks up the key's effect and the refusal of one request, whoever holds the key: two live records
-- at most, with what remains of their lifetimes in seconds.
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    the request's fingerprint
-- Needs no transaction around it.
SELECT request,
       fingerprint,
       status,
       headers,
       body,
       extract(epoch FROM least(expires_at, pg_catalog.clock_timestamp() + interval '10 years')
                          - pg_catalog.clock_timestamp())::float8 AS remaining
  FROM idem.records
 WHERE scope = $1
   AND operation = $2
   AND key = $3
   AND request IN (''::bytea, $4)
   AND expires_at > pg_catalog.clock_timestamp()
