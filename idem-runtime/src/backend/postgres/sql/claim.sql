-- Takes hold of a key until the transaction ends, if nobody else has, and sets the fences.
-- It looks at no table: a lookup in the same statement would use a snapshot from before the lock.
--   $1 bigint   the key's lock
--   $2 text     idle_in_transaction_session_timeout
--   $3 text     client_connection_check_interval
-- Returns whether the key is ours, when the transaction began, and whether it has written nothing
-- so far (if it has, the pool handed out a connection inside somebody's transaction).
SELECT pg_catalog.pg_try_advisory_xact_lock($1) AS locked,
       pg_catalog.now() AS began,
       pg_catalog.pg_current_xact_id_if_assigned() IS NULL AS fresh,
       pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true),
       pg_catalog.set_config('client_connection_check_interval', $3, true)
