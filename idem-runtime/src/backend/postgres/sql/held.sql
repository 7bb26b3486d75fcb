-- Tells whether a transaction of any process has hold of a key, without trying to get it.
--   $1 bigint   the key's lock
SELECT EXISTS (
       SELECT FROM pg_catalog.pg_locks
        WHERE locktype = 'advisory'
          AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
          AND classid::bigint = ($1 >> 32) & 4294967295
          AND objid::bigint = $1 & 4294967295
          AND objsubid = 1
          AND granted) AS held
