#!/bin/sh
# Starts the fence, then the platform, which listens on loopback alone; ends with whichever ends first.
set -eu
nginx -c /fleet/certs/nginx.conf
trap 'nginx -c /fleet/certs/nginx.conf -s quit' EXIT
fedmeta platform --host 127.0.0.1 --port 8000 --certs /fleet/certs "$@"
