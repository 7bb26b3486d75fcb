-- Deletes what stands in the way of a new record after its end. The last line matters: another
-- request may have put a fresh record there since the lookup.
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    the request's fingerprint
DELETE FROM idem.records
 WHERE scope = $1
   AND operation = $2
   AND key = $3
   AND request IN (''::bytea, $4)
   AND expires_at <= pg_catalog.clock_timestamp()
