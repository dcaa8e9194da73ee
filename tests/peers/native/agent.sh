#!/bin/sh
# Runs a command on a "host", a network namespace: agent.sh [-x] HOST COMMAND…
while [ "${1#-}" != "$1" ]; do shift; done
host=$1
shift
exec ip netns exec "$host" sh -c "$*"
