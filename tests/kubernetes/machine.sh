#!/usr/bin/env bash
# Process 1 of a machine of the test cluster: namespaces of its own for processes, network, mounts, cgroups and names.
#
#   machine.sh NAME DIR    DIR becomes the machine's disk; started by start_machine in machines.sh
#
# Its root is an overlay of this machine's root, whose changes are in memory and end with it. So installing the runtime
# there (/usr/local, /etc/containerd, /etc/cwasi) touches nothing here. The kubelet's and containerd's data lie in DIR.
# Whatever runs in it ends with this process.
set -euo pipefail
source "$(dirname "$0")/../../scripts/lib.sh"
source "$CHECKOUT/tests/kubernetes/mounts.sh"

NAME=$1 DIR=$2
ROOT=$DIR/root

mount_root
mount_hierarchies

mkdir -p "$ROOT/old-root"
cd "$ROOT"
pivot_root . old-root
umount --lazy /old-root
rmdir /old-root
# As systemd leaves it: the kubelet's mounts reach containers that ask for it.
mount --make-rshared /

hostname "$NAME"
ip link set lo up
# Waits for children that lost their parents, until it is killed.
: >/run/ready
while :; do
    sleep infinity &
    wait $!
done
