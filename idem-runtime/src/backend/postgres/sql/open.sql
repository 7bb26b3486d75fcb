-- Opens a transaction for a request without a key.
--   $1 text[]   settings to make for this transaction alone
--   $2 text[]   their values
-- Returns what the claim returns, without a lock.
SELECT pg_catalog.now() AS began,
       pg_catalog.pg_current_xact_id_if_assigned() IS NULL AS fresh,
       (SELECT pg_catalog.count(pg_catalog.set_config(s.name, s.value, true))
          FROM unnest($1::text[], $2::text[]) AS s (name, value)) AS settings
