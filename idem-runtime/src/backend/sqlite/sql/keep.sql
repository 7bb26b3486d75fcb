-- Stores an answer: the only write of a request, in the transaction of the handler's own writes.
-- The primary key is the guard of "at most one effect".
--   ?1, ?2, ?3   scope, operation, key
--   ?4           empty for the effect, the fingerprint for a refusal
--   ?5           the request's fingerprint
--   ?6, ?7, ?8   status, headers, body
--   ?9           lifetime in milliseconds
-- Both times are the same: within one statement the clock stands still.
INSERT INTO idem_records
       (scope, operation, key, request, fingerprint, status, headers, body, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8,
        CAST(unixepoch('subsec') * 1000 AS INTEGER),
        CAST(unixepoch('subsec') * 1000 AS INTEGER) + ?9)
