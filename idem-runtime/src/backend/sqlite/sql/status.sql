-- Looks at a key's effect or, if it has none, at its latest refusal: one live record at most,
-- with what remains of its lifetime in milliseconds.
--   ?1, ?2, ?3   scope, operation, key
SELECT request,
       fingerprint,
       status,
       headers,
       body,
       strftime('%Y-%m-%dT%H:%M:%fZ', created_at / 1000.0, 'unixepoch') AS created,
       strftime('%Y-%m-%dT%H:%M:%fZ', expires_at / 1000.0, 'unixepoch') AS expires,
       expires_at - CAST(unixepoch('subsec') * 1000 AS INTEGER) AS remaining
  FROM idem_records
 WHERE scope = ?1
   AND operation = ?2
   AND key = ?3
   AND expires_at > CAST(unixepoch('subsec') * 1000 AS INTEGER)
 ORDER BY request <> x'', created_at DESC
 LIMIT 1
