-- Deletes a batch of expired records. Several instances can sweep at once: each skips the rows
-- that another has locked.
--   $1 bigint   how many at most
DELETE FROM idem.records
 WHERE ctid = ANY (ARRAY(
       SELECT ctid
         FROM idem.records
        WHERE expires_at <= pg_catalog.clock_timestamp()
        LIMIT $1
          FOR UPDATE SKIP LOCKED))
