# Runs in the machine (scripts/vm.sh): device rules with cgroup v2, as runc enforces them.
#
# A container may make any node (CAP_MKNOD is among containerd's defaults) and open what its rules allow.

grep -q 'cgroup2 /sys/fs/cgroup ' /proc/mounts || fail "no cgroup v2"

# What can be opened: the container's own devices, and nodes that it makes for itself.
cat >/rootfs/devices <<'SCRIPT'
#!/bin/busybox sh
b=/bin/busybox
try() { (: <"$1") 2>/dev/null && $b echo "$1 opens" || $b echo "$1 does not open"; }
for name in null zero full random urandom; do try /dev/$name; done
$b mknod /made-null c 1 3 && try /made-null
$b mknod /made-kmsg c 1 11 && try /made-kmsg
$b mknod /made-mem c 1 1 && try /made-mem
$b mknod /made-ram b 1 0 && try /made-ram
(: </made-kmsg) 2>&1 | $b grep -q 'Operation not permitted' && $b echo "the error is EPERM"
SCRIPT
chmod 755 /rootfs/devices

run() { # runtime, id, flags…
    local runtime=$1 id=$2
    shift 2
    rm -f /rootfs/made-*
    ctr run --rm --runtime "$runtime" "$@" --rootfs /rootfs "$id" /devices 2>&1
}

for flags in "" "--privileged" "--device /dev/kmsg"; do
    # shellcheck disable=SC2086 # flags are words
    expected=$(run io.containerd.runc.v2 by-runc $flags)
    # shellcheck disable=SC2086
    got=$(run io.containerd.cwasi.v1 by-cwasi $flags)
    say "flags '$flags':" "$got"
    [ "$got" = "$expected" ] || fail "runc with '$flags': $expected"
done

# Verbs after the create leave the rules in force. (`ctr` has none that updates limits.)
rm -f /rootfs/made-*
cat >/rootfs/later <<'SCRIPT'
#!/bin/busybox sh
b=/bin/busybox
$b mknod /made-kmsg c 1 11
while [ ! -e /resumed ]; do $b sleep 0.1; done
(: </made-kmsg) 2>/dev/null && $b echo open || $b echo closed
(: </dev/null) 2>/dev/null && $b echo null
SCRIPT
chmod 755 /rootfs/later
ctr run --rm --runtime io.containerd.cwasi.v1 --rootfs /rootfs resumed /later >/resumed.log 2>&1 &
waiting=$!
until ctr task ls | grep -q 'resumed.*RUNNING'; do sleep 0.2; done
ctr task pause resumed && ctr task resume resumed || fail "pause and resume"
touch /rootfs/resumed
wait "$waiting"
[ "$(cat /resumed.log)" = "$(printf 'closed\nnull')" ] || fail "after other verbs: $(cat /resumed.log)"
say "the rules outlive other verbs"
