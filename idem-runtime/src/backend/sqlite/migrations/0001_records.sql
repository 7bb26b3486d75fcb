-- The record table of idem-runtime: one row for a key's effect, one for each refused request.
CREATE TABLE idem_records (
    scope       TEXT    NOT NULL, -- who owns the key
    operation   TEXT    NOT NULL, -- what it is for
    key         TEXT    NOT NULL,
    request     BLOB    NOT NULL, -- empty: the effect; else the fingerprint of a refused request
    fingerprint BLOB    NOT NULL, -- version byte and SHA-256 of the request
    status      INTEGER NOT NULL,
    headers     BLOB    NOT NULL, -- "name: value" lines
    body        BLOB    NOT NULL,
    created_at  INTEGER NOT NULL, -- milliseconds since 1970
    expires_at  INTEGER NOT NULL,
    PRIMARY KEY (scope, operation, key, request)
) STRICT;

CREATE INDEX idem_records_expires_at ON idem_records (expires_at);

CREATE TABLE idem_migrations (
    version    INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000 AS INTEGER))
) STRICT;

INSERT INTO idem_migrations (version) VALUES (1);
