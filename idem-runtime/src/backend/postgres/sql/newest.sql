-- Tells the newest migration that was applied.
SELECT coalesce(pg_catalog.max(version), 0) FROM idem.migrations
