-- Tells whether any migration was applied.
SELECT count(*) > 0 FROM sqlite_schema WHERE type = 'table' AND name = 'idem_migrations'
