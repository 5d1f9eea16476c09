#!/bin/sh
# Makes the secrets of docker-compose.yml, random, once; what is there already stays. Their directory is not under version control.
set -eu
cd "$(dirname "$0")"
mkdir -p secrets
# Compose mounts these files as they are, so that the users inside the containers must be able to read them; others on this machine
# cannot, because they cannot enter the directory.
chmod 700 secrets

random() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
make() { [ -s "secrets/$1" ] || printf '%s\n' "$2" >"secrets/$1"; chmod 644 "secrets/$1"; }

make postgres_password "$(random)"
make database_url "postgresql+psycopg://datacoord:$(cat secrets/postgres_password)@postgres:5432/datacoord"
make s3_user datacoord
make s3_password "$(random)"
make s3_credentials "[default]
aws_access_key_id = $(cat secrets/s3_user)
aws_secret_access_key = $(cat secrets/s3_password)"
make grafana_password "$(random)"
echo "secrets: deploy/secrets/ is complete; Grafana's user is admin, its password is in deploy/secrets/grafana_password"
