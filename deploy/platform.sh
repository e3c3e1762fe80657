#!/bin/sh
# Starts the fence, then the platform, which listens on loopback alone. A run that was begun is continued.
set -eu
run=/fleet/runs/fleet
if [ -e "$run/fleet/plan.json" ]; then
    set -- --resume "$run"
else
    set -- --out "$run" "$@"
fi
nginx -c /fleet/certs/nginx.conf
exec fedmeta platform --host 127.0.0.1 --port 8000 --certs /fleet/certs "$@"
