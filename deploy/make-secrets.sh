#!/bin/sh
# Makes the secrets of docker-compose.yml, random, once; what is there already stays. Their directory is not under version control.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
# Compose mounts these files as they are, so that the users inside the containers must be able to read them; others on this machine
# cannot, because they cannot enter the directory.
chmod 700 secrets
# These are mounted as directories: what is replaced in them while containers run is seen there (docs/security.md).
mkdir -p secrets/coordinator secrets/datanode
chmod 755 secrets/coordinator secrets/datanode

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
make() { [ -s "secrets/$1" ] || printf '%s\n' "$2" >"secrets/$1"; chmod 644 "secrets/$1"; }

# Of the database: the superuser, whom nobody uses, and a role each to migrate and to serve (postgres/roles.sql).
make postgres_password "$(random)"
for role in migrate run; do
  make "postgres_${role}_password" "$(random)"
  make "database_url_$role" "postgresql+psycopg://datacoord_$role:$(cat "secrets/postgres_${role}_password")@postgres:5432/datacoord"
done
# Of the object store: its own administrator, and a user who may use the bucket and nothing else.
make s3_root_user root-of-objectstore
make s3_root_password "$(random)"
make s3_user datacoord
make s3_password "$(random)"
make s3_credentials "[default]
aws_access_key_id = $(cat secrets/s3_user)
aws_secret_access_key = $(cat secrets/s3_password)"
# Who may call the coordinators: a token each for the datanodes and for whoever operates them, and their hashes (docs/security.md).
digest() { tr -d '\n' <"secrets/$1" | { sha256sum 2>/dev/null || shasum -a 256; } | cut -c1-64; }
entry() { printf '[[token]]\nname = "%s"\nrole = "%s"\nsha256 = "%s"\n' "$1" "$2" "$(digest "$3")"; }
make datanode/token "datacoord_$(random)$(random)"
make admin_token "datacoord_$(random)$(random)"
make coordinator/tokens.toml "$(entry datanodes writer datanode/token; entry operator admin admin_token)"
make grafana_password "$(random)"
echo "secrets: deploy/secrets/ is complete; Grafana's user is admin, its password is in deploy/secrets/grafana_password"
