-- Tells the path of the database's file; empty if it lives in memory.
SELECT coalesce(file, '') FROM pragma_database_list WHERE name = 'main'
