-- Deletes a batch of expired records.
--   ?1   how many at most
DELETE FROM idem_records
 WHERE rowid IN (
       SELECT rowid
         FROM idem_records
        WHERE expires_at <= CAST(unixepoch('subsec') * 1000 AS INTEGER)
        LIMIT ?1)
