-- Tells the newest migration that was applied.
SELECT coalesce(max(version), 0) FROM idem_migrations
