-- Tells whether this is a server and a role that the protocol can work with.
SELECT pg_catalog.current_setting('server_version_num')::integer AS server,
       pg_catalog.pg_is_in_recovery() AS standby,
       pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
       pg_catalog.has_table_privilege('idem.records', 'SELECT')
       AND pg_catalog.has_table_privilege('idem.records', 'INSERT')
       AND pg_catalog.has_table_privilege('idem.records', 'UPDATE') -- The sweep locks rows.
       AND pg_catalog.has_table_privilege('idem.records', 'DELETE') AS allowed,
       (SELECT pg_catalog.max(version) FROM idem.migrations) AS version
