-- Finds the key's effect and the refusal of one request, live or expired: two rows at most,
-- each with what remains of its lifetime in milliseconds.
--   ?1, ?2, ?3   scope, operation, key
--   ?4           the request's fingerprint
SELECT request,
       fingerprint,
       status,
       headers,
       body,
       expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER) AS remaining
  FROM idem_records
 WHERE scope = ?1
   AND operation = ?2
   AND key = ?3
   AND request IN (x'', ?4)
