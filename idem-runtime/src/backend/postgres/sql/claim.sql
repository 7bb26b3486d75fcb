-- Takes hold of a key until the transaction ends, if nobody else has, sets the fences, and looks
-- up the key's effect and the refusal of one request, live or expired: two records at most.
--   $1 bigint                   the key's lock
--   $2 text                     idle_in_transaction_session_timeout
--   $3 text                     client_connection_check_interval
--   $4 text, $5 text, $6 text   scope, operation, key
--   $7 bytea                    the request's fingerprint
-- Returns one row at least: whether the key is ours, when the transaction began, whether it has
-- written nothing so far (if it has, the pool handed out a connection inside somebody's
-- transaction), and a record, with what remains of its lifetime in seconds, or nulls.
-- The statement's snapshot is from before the lock, so a record that was committed in between is
-- not found. Storing an answer looks again, under the lock.
SELECT claim.locked,
       claim.began,
       claim.fresh,
       record.request,
       record.fingerprint,
       record.status,
       record.headers,
       record.body,
       CASE WHEN record.expires_at > pg_catalog.clock_timestamp()
            THEN extract(epoch FROM least(record.expires_at,
                                          pg_catalog.clock_timestamp() + interval '10 years')
                                    - pg_catalog.clock_timestamp())::float8
            ELSE 0
       END AS remaining
  FROM (SELECT pg_catalog.pg_try_advisory_xact_lock($1) AS locked,
               pg_catalog.now() AS began,
               pg_catalog.pg_current_xact_id_if_assigned() IS NULL AS fresh,
               pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true),
               pg_catalog.set_config('client_connection_check_interval', $3, true)) AS claim
  LEFT JOIN idem.records AS record
    ON record.scope = $4
   AND record.operation = $5
   AND record.key = $6
   AND record.request IN (''::bytea, $7)
