#!/bin/sh
# Installs what the tests start for real and this machine lacks, of Debian's packages: Postgres 15, Redis 7, and Chromium's
# headless shell, which needs a third less CPU than Chromium without a window.
set -eu
missing=""
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v chromium-headless-shell >/dev/null || missing="$missing chromium-headless-shell"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "tests need:$missing (install it, or run as root on Debian)" >&2
    exit 1
fi
# A server package must not start a cluster of its own: the tests start theirs.
mkdir -p /etc/postgresql-common
grep -qs '^create_main_cluster' /etc/postgresql-common/createcluster.conf ||
    echo 'create_main_cluster = false' >>/etc/postgresql-common/createcluster.conf
apt-get update -qq
# Nor may the package of Redis start one: policy-rc.d is asked before any service starts.
policy=/usr/sbin/policy-rc.d
[ -e "$policy" ] || { printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" && trap 'rm -f "$policy"' EXIT; }
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
