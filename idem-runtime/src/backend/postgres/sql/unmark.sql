-- Takes the row of the mark away again, in the same transaction.
--   $1 text, $2 text, $3 text   scope, operation, key
--   $4 bytea                    the request's fingerprint
DELETE FROM idem.records
 WHERE scope = $1
   AND operation = $2
   AND key = $3
   AND request = $4
