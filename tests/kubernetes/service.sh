#!/usr/bin/env bash
# Keeps a program running in a machine of the test cluster, as an init system would: service.sh NAME COMMAND…
# Its process is in /run/services/NAME.pid, its output in /var/log/NAME.log.
set -u
name=$1
shift
while :; do
    "$@" >>"/var/log/$name.log" 2>&1 </dev/null &
    echo $! >"/run/services/$name.pid"
    wait $!
    echo "service.sh: $name ended with $?, and is started again" >>"/var/log/$name.log"
    sleep 0.2
done
