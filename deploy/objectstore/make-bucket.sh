#!/bin/sh
# Makes the bucket, and the user who may use it and nothing else; safe to repeat. For the image of the store: it has `mc` and a shell, and
# little else.
set -eu
secrets=/run/secrets
user=$(cat "$secrets/s3_user")
mc alias set store http://objectstore:9000 "$(cat "$secrets/s3_root_user")" "$(cat "$secrets/s3_root_password")" >/dev/null
mc mb --ignore-existing store/datacoord
mc admin policy create store datacoord-bucket "$(dirname "$0")/bucket-policy.json"
mc admin user add store "$user" "$(cat "$secrets/s3_password")"
# To attach what is attached is an error for `mc`.
case $(mc admin user info store "$user") in
  *datacoord-bucket*) ;;
  *) mc admin policy attach store datacoord-bucket --user "$user" ;;
esac
