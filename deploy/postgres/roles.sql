-- Two roles for Datacoord: `datacoord_migrate` owns the tables, `datacoord_run` reads and writes rows and can neither make, change nor
-- drop a table. The compose file runs this when it makes the database. By hand, as a superuser or a role that may make roles:
--
--   psql --dbname=… --set=migrate_password=… --set=run_password=… --file=deploy/postgres/roles.sql
--
-- It may be run again: on a database that one role has migrated and served so far, and to give the roles new passwords.
\set ON_ERROR_STOP on
\if :{?run_password}
\else
\set migrate_password `cat /run/secrets/postgres_migrate_password`
\set run_password `cat /run/secrets/postgres_run_password`
\endif

SELECT format('CREATE ROLE %I LOGIN', name) FROM (VALUES ('datacoord_migrate'), ('datacoord_run')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE datacoord_migrate PASSWORD :'migrate_password';
ALTER ROLE datacoord_run PASSWORD :'run_password';
GRANT datacoord_migrate TO CURRENT_USER;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
REVOKE TEMPORARY ON DATABASE :"DBNAME" FROM PUBLIC;
GRANT USAGE, CREATE ON SCHEMA public TO datacoord_migrate;
GRANT USAGE ON SCHEMA public TO datacoord_run;
ALTER DEFAULT PRIVILEGES FOR ROLE datacoord_migrate IN SCHEMA public GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO datacoord_run;
ALTER DEFAULT PRIVILEGES FOR ROLE datacoord_migrate IN SCHEMA public GRANT USAGE ON SEQUENCES TO datacoord_run;

-- Tables that are there already.
SELECT format('ALTER TABLE public.%I OWNER TO datacoord_migrate', tablename) FROM pg_tables WHERE schemaname = 'public' \gexec
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO datacoord_run;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO datacoord_run;
