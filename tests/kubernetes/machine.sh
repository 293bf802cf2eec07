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

NAME=$1 DIR=$2
ROOT=$DIR/root
# On disk: larger than memory should hold, or the upper directory of an overlay.
ON_DISK=(var/lib/containerd var/lib/kubelet var/lib/etcd var/log)

mount --make-rprivate /
mkdir -p "$ROOT" "$DIR/memory"
mount -t tmpfs -o mode=755 tmpfs "$DIR/memory"
mkdir "$DIR/memory/upper" "$DIR/memory/work"
mount -t overlay -o "lowerdir=/,upperdir=$DIR/memory/upper,workdir=$DIR/memory/work" overlay "$ROOT"

for folder in "${ON_DISK[@]}"; do
    mkdir -p "$ROOT/$folder" "$DIR/disk/$folder"
    mount --bind "$DIR/disk/$folder" "$ROOT/$folder"
done
mount --bind "$CHECKOUT" "$ROOT$CHECKOUT"
# Compiled modules are kept between runs, as those of the other tests.
mkdir -p "$ROOT/var/lib/cwasi" "$STATE_DIR/aot"
mount --bind "$STATE_DIR/aot" "$ROOT/var/lib/cwasi"

mount -t proc proc "$ROOT/proc"
mount -t sysfs sysfs "$ROOT/sys"
mount -t tmpfs -o mode=755 tmpfs "$ROOT/run"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"
mkdir -p "$ROOT/run/lock" "$ROOT/run/services"
mount --bind /dev "$ROOT/dev"
mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$ROOT/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$ROOT/dev/shm"

# Each hierarchy again: the root of the cgroup namespace is the root of the mount.
mount -t tmpfs -o mode=755 tmpfs "$ROOT/sys/fs/cgroup"
for hierarchy in /sys/fs/cgroup/*/; do
    name=$(basename "$hierarchy")
    mkdir "$ROOT/sys/fs/cgroup/$name"
    case $name in
    unified) mount -t cgroup2 cgroup2 "$ROOT/sys/fs/cgroup/$name" ;;
    systemd) mount -t cgroup -o none,name=systemd cgroup "$ROOT/sys/fs/cgroup/$name" ;;
    *) mount -t cgroup -o "$name" cgroup "$ROOT/sys/fs/cgroup/$name" ;;
    esac
done

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
