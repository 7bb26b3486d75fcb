-- Makes the service's own settings, for this transaction alone.
--   $1 text[]   names
--   $2 text[]   values
SELECT pg_catalog.set_config(s.name, s.value, true)
  FROM unnest($1::text[], $2::text[]) AS s (name, value)
