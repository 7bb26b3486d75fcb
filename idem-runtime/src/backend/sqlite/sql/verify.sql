-- Tells how the connection is set up: the library's version, how commits are written.
SELECT sqlite_version() AS version,
       (SELECT journal_mode FROM pragma_journal_mode) AS journal_mode,
       (SELECT synchronous FROM pragma_synchronous) AS synchronous
