-- Deletes a batch of expired records. Several instances can sweep at once: each skips the rows
-- that another has locked.
-- `now()`, not `clock_timestamp()`: only a stable function can be looked up in the index, and the
-- transaction is the sweep's own and new.
--   $1 bigint   how many at most
DELETE FROM idem.records
 WHERE ctid = ANY (ARRAY(
       SELECT ctid
         FROM idem.records
        WHERE expires_at <= pg_catalog.now()
        LIMIT $1
          FOR UPDATE SKIP LOCKED))
