-- The record table of idem-runtime: one row for a key's effect, one for each refused request.
CREATE SCHEMA IF NOT EXISTS idem;

CREATE TABLE idem.records (
    scope       text        COLLATE "C" NOT NULL, -- who owns the key
    operation   text        COLLATE "C" NOT NULL, -- what it is for
    key         text        COLLATE "C" NOT NULL,
    request     bytea       NOT NULL,             -- empty: the effect; else the fingerprint of a refused request
    fingerprint bytea       NOT NULL,             -- version byte and SHA-256 of the request
    status      smallint    NOT NULL,
    headers     bytea       NOT NULL,             -- "name: value" lines
    body        bytea       NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    PRIMARY KEY (scope, operation, key, request)
);

CREATE INDEX records_expires_at ON idem.records (expires_at);

CREATE TABLE idem.migrations (
    version    integer     PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

INSERT INTO idem.migrations (version) VALUES (1);
