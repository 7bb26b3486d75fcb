-- Sets the fences of a transaction for a request without a key.
--   $1 text   idle_in_transaction_session_timeout
--   $2 text   client_connection_check_interval
-- Returns what the claim returns, without a lock.
SELECT pg_catalog.now() AS began,
       pg_catalog.pg_current_xact_id_if_assigned() IS NULL AS fresh,
       pg_catalog.set_config('idle_in_transaction_session_timeout', $1, true),
       pg_catalog.set_config('client_connection_check_interval', $2, true)
