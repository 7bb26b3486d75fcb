-- Deletes what stands in the way of a new record after its end.
--   ?1, ?2, ?3   scope, operation, key
--   ?4           the request's fingerprint
DELETE FROM idem_records
 WHERE scope = ?1
   AND operation = ?2
   AND key = ?3
   AND request IN (x'', ?4)
   AND expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)
