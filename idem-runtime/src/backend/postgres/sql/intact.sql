-- Fails if this is no longer the transaction that began for the request, or if a statement in it
-- has failed; it goes right before the COMMIT of a request without a key.
--   $1 timestamptz   when the transaction began
SELECT 1 / CASE WHEN pg_catalog.now() = $1 THEN 1 ELSE 0 END
