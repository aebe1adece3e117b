# Makes the database of POSTGRES_USER, POSTGRES_PASSWORD and POSTGRES_DB on an empty volume, and runs the server.
set -eu
data=/var/lib/postgresql/data
chown postgres:postgres "$data"
chmod 0700 "$data"
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
as() { setpriv --reuid postgres --regid postgres --init-groups -- "$@"; }
cd /
if ! test -s "$data/PG_VERSION"; then
  password=$(mktemp)
  printf %s "$POSTGRES_PASSWORD" > "$password"
  chown postgres "$password"
  as initdb --pgdata "$data" --username "$POSTGRES_USER" --pwfile "$password" --auth scram-sha-256 \
    --encoding UTF8 --locale C.UTF-8
  rm "$password"
  echo "host all all all scram-sha-256" >> "$data/pg_hba.conf"
  as postgres --single -D "$data" postgres > /dev/null <<END
CREATE DATABASE "$POSTGRES_DB" OWNER "$POSTGRES_USER"
END
fi
exec setpriv --reuid postgres --regid postgres --init-groups -- \
  postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/var/run/postgresql
