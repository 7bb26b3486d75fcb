-- Takes hold of a key until the transaction ends, if nobody else has.
-- It looks at no table: a lookup in the same statement would use a snapshot from before the lock.
--   $1 bigint   the key's lock
--   $2 text[]   settings to make for this transaction alone
--   $3 text[]   their values
-- Returns whether the key is ours, when the transaction began, and whether it has written nothing
-- so far (if it has, the pool handed out a connection inside somebody's transaction).
SELECT pg_catalog.pg_try_advisory_xact_lock($1) AS locked,
       pg_catalog.now() AS began,
       pg_catalog.pg_current_xact_id_if_assigned() IS NULL AS fresh,
       (SELECT pg_catalog.count(pg_catalog.set_config(s.name, s.value, true))
          FROM unnest($2::text[], $3::text[]) AS s (name, value)) AS settings
