#!/usr/bin/env bash
# Runs tests/vm/NAME.sh as root in a machine of its own: QEMU without KVM, Debian 13's cloud kernel, cgroup v2. Its
# first process is tests/vm/init, or Debian 13's systemd for a test with the line "# needs: systemd".
# The machine has the runtime of target/debug (PROFILE=release: target/release), containerd 1.7, runc, busybox and the
# function tests/vm/act.wat, in memory. For a test with the line "# needs: power cut" it also has a disk, /var/lib. Its
# power is cut when the test says "cut", and it boots again with the same disk.
#
#   vm.sh NAME…                   each test in a machine of its own; without a name, all of tests/vm
#   VM_ARCH=aarch64 vm.sh smoke   the same on 64-bit ARM, with the static programs that are built for it here
#
# A test with the line "# needs: guests" also finds test guests in /rootfs, which are compiled there. One with "# needs:
# units" has `cwasi` and the units of deploy/systemd. One with "# needs: kubelet" has a kubelet, which is
# built from its Go modules if make test-kubernetes has not, containerd 2.1, images, and the disk.
# A test with the line "# needs: a peer" has `cwasi`, and runs in two machines at once with a network between them. The
# second one, whose kernel has the argument vm.role=peer, has the disk, and its power is cut. It ends with the first one.
# The files of the folder tests/vm/NAME, if there is one, are copied to the machine's root.
#
# Booting takes about half a minute. A machine that has not ended after VM_SECONDS (300, three times as many with guests
# or a kubelet) is killed. Its console is .cwasi/vm/NAME.log.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/workspaces.sh"
source "$CHECKOUT/scripts/go.sh"
source "$CHECKOUT/tests/kubernetes/programs.sh"

VM_ARCH=${VM_ARCH:-$(uname -m)}
VM_DIR=$STATE_DIR/vm
VM_SECONDS=${VM_SECONDS:-300}
QEMU=$STATE_DIR/qemu
SYSTEMD=$STATE_DIR/systemd
GUESTS_DIR=$TARGET_DIR/guests/$GUEST_TARGET/release
case $VM_ARCH in
x86_64)
    PROGRAMS_DIR=$TARGET_DIR/${PROFILE:-debug}
    KERNEL=$STATE_DIR/kernel
    DEBIAN_PROGRAMS=("$STATE_DIR"/containerd-1.7/usr/bin/{containerd,ctr,containerd-shim-runc-v2} "$STATE_DIR/runc/usr/sbin/runc")
    BUSYBOX=$STATE_DIR/busybox/bin/busybox
    MACHINE=(qemu-system-x86_64 -cpu max)
    CONSOLE=ttyS0
    ;;
aarch64)
    source "$CHECKOUT/scripts/arm64-packages.sh"
    source "$CHECKOUT/scripts/static.sh"
    PROGRAMS_DIR=$TARGET_DIR/$STATIC_ARM64/${PROFILE:-debug}
    KERNEL=$ARM64_DIR/kernel
    DEBIAN_PROGRAMS=("$ARM64_ROOT"/usr/bin/{containerd,ctr,containerd-shim-runc-v2} "$ARM64_ROOT/usr/sbin/runc")
    BUSYBOX=$ARM64_ROOT/usr/bin/busybox
    MACHINE=(qemu-system-aarch64 -M virt -cpu cortex-a72)
    CONSOLE=ttyAMA0
    ;;
*) die "there is no machine for $VM_ARCH" ;;
esac
# The last word of a machine whose test has passed.
PASSED="vm-test: passed"
# The word of a test that wants its machine's power cut.
CUT="vm-test: cut"
DISK_SIZE=256M

# The libraries that a program loads: their paths in the machine, and where they are here.
libraries() {
    if [ "$VM_ARCH" = aarch64 ]; then
        arm64_libraries "$1"
    else
        ldd "$1" 2>/dev/null | grep -oE '/[^ ]+' | while read -r library; do echo "$library $library"; done
    fi
}

# Copies programs with the libraries that they load.
add_programs() {
    local root=$1 program library source
    shift
    for program in "$@"; do
        install -D -m 755 "$program" "$root/usr/bin/$(basename "$program")"
        libraries "$program" | while read -r library source; do
            [ -e "$root$library" ] || install -D -m 755 "$(realpath "$source")" "$root$library"
        done
    done
}

# needs NAME WHAT: whether the test NAME has such a line
needs() { grep -q "^# needs: $2\$" "$CHECKOUT/tests/vm/$1.sh"; }

# The machine's first file system: everything that it has.
make_root() {
    local root=$1 name=$2 applet
    mkdir -p "$root"/{proc,sys,dev,run,tmp,var,etc,rootfs/bin,rootfs/proc,rootfs/sys,rootfs/dev,rootfs/run}
    install -m 755 "$BUSYBOX" "$root/rootfs/bin/busybox"
    install -D -m 755 "$BUSYBOX" "$root/bin/busybox"
    for applet in $("$STATE_DIR/busybox/bin/busybox" --list); do
        [ "$applet" = busybox ] || ln -s busybox "$root/bin/$applet"
    done
    add_programs "$root" "$PROGRAMS_DIR"/{containerd-shim-cwasi-v1,cwasi-shim,cwasi-sandbox,cwasi-compiler} "${DEBIAN_PROGRAMS[@]}"
    "$TARGET_DIR/debug/cwasi-testbed" assemble "$CHECKOUT/tests/vm/act.wat" "$root/rootfs/act.wasm"
    install -m 755 "$CHECKOUT/tests/vm/init" "$root/init"
    install -m 644 "$CHECKOUT/tests/vm/$name.sh" "$root/test.sh"
    if needs "$name" systemd; then add_systemd "$root"; fi
    if needs "$name" units; then add_units "$root"; fi
    if needs "$name" kubelet; then add_kubelet "$root"; fi
    if needs "$name" "a peer"; then
        add_programs "$root" "$PROGRAMS_DIR/cwasi"
        objcopy --strip-all "$root/usr/bin/cwasi"
        install -D -m 644 -t "$root/modules" "$KERNEL"/modules/*
    fi
    if needs "$name" guests; then
        cp "$GUESTS_DIR"/{reader,sender,shout,letters,server}.wasm "$root/rootfs/"
        "$TARGET_DIR/debug/cwasi-testbed" image "$root/letters.tar" localhost/letters:test \
            --file "$GUESTS_DIR/letters.wasm:/m.wasm" --entrypoint /m.wasm
    fi
    if [ -d "$CHECKOUT/tests/vm/$name" ]; then cp -a "$CHECKOUT/tests/vm/$name/." "$root/"; fi
}

# The kubelet, the containerd that clusters have today, and the images of pods.
add_kubelet() {
    local root=$1 testbed=$TARGET_DIR/debug/cwasi-testbed
    rm "$root"/usr/bin/{containerd,ctr,containerd-shim-runc-v2}
    add_programs "$root" "$STATE_DIR"/containerd-2/usr/bin/{containerd,ctr,containerd-shim-runc-v2}
    install -m 755 "$PROGRAMS/kubelet" "$root/usr/bin/kubelet"
    mkdir "$root/images"
    "$testbed" image "$root/images/pause.tar" localhost/pause:test --file "$PROGRAMS/pause:/pause" --entrypoint /pause
    "$testbed" image "$root/images/act.tar" localhost/act:test --file "$root/rootfs/act.wasm:/act.wasm"
}

# Its manager and its client, without any unit but ours.
add_systemd() {
    local root=$1 program libraries=$SYSTEMD/usr/lib/x86_64-linux-gnu
    mkdir -p "$root/usr/lib"
    cp -a "$libraries" "$root/usr/lib/"
    for program in lib/systemd/systemd lib/systemd/systemd-executor bin/systemctl; do
        install -D -m 755 "$SYSTEMD/usr/$program" "$root/usr/$program"
        LD_LIBRARY_PATH=$libraries:$libraries/systemd ldd "$SYSTEMD/usr/$program" |
            grep -oE '=> /[^ ]+' | cut -d ' ' -f 2 | while read -r library; do
            [ "${library#"$SYSTEMD"}" != "$library" ] || [ -e "$root$library" ] ||
                install -D -m 755 "$(realpath "$library")" "$root$library"
        done
    done
    install -D -m 644 "$CHECKOUT/tests/vm/vm-test.service" "$root/etc/systemd/system/vm-test.service"
}

# The units of deploy/systemd, the targets of Debian's systemd that units depend on, and the folders of every Debian.
add_units() {
    local root=$1
    add_programs "$root" "$PROGRAMS_DIR/cwasi"
    mkdir -p "$root/usr/local/bin" "$root/var/tmp" "$root/root" "$root/home"
    objcopy --strip-all "$PROGRAMS_DIR/cwasi" "$root/usr/local/bin/cwasi"
    rm "$root/usr/bin/cwasi"
    install -m 644 "$CHECKOUT"/deploy/systemd/*.service "$SYSTEMD"/usr/lib/systemd/system/*.target "$root/etc/systemd/system/"
}

# One machine, until it ends or its time is over; a signal to this script's processes ends it too. Its console is
# appended to the log. `this`: name or name.peer, of its disk and its end of the cable.
boot() {
    local name=$1 log=$2 this=${3:-$1} other mac
    local disk=$VM_DIR/$this.img devices=() role=
    [ ! -e "$disk" ] || devices=(-drive "file=$disk,format=raw,if=none,id=disk" -device "nvme,drive=disk,serial=1")
    if needs "$name" "a peer"; then
        other=$name.peer role=vm.role=first mac=52:54:00:00:00:01
        [ "$this" = "$name" ] || other=$name role=vm.role=peer mac=52:54:00:00:00:02
        rm -f "$VM_DIR/$this.cable"
        devices+=(-netdev "dgram,id=cable,local.type=unix,local.path=$VM_DIR/$this.cable,remote.type=unix,remote.path=$VM_DIR/$other.cable"
            -device "virtio-net-pci,netdev=cable,romfile=,mac=$mac")
    fi
    LD_LIBRARY_PATH=$QEMU/usr/lib/x86_64-linux-gnu exec timeout --foreground --kill-after=5 "$VM_SECONDS" \
        "$QEMU/usr/bin/${MACHINE[0]}" "${MACHINE[@]:1}" -L "$QEMU/firmware" -accel tcg,thread=multi -smp 2 -m 3G -nic none \
        -kernel "$KERNEL"/boot/vmlinuz-* -initrd "$VM_DIR/$name.cpio" -append "console=$CONSOLE quiet panic=-1 $role" -no-reboot \
        -display none -monitor none -chardev "file,id=console,path=$log,append=on" -serial chardev:console \
        "${devices[@]}" </dev/null
}

make_disk() {
    truncate -s "$DISK_SIZE" "$VM_DIR/$1.img"
    /usr/sbin/mke2fs -q -F -t ext4 "$VM_DIR/$1.img"
}

# Boots a machine, and ends it without any warning when its test asks for that.
cut_power() {
    local name=$1 log=$2 machine
    boot "$@" &
    machine=$!
    until grep -q "^$CUT" "$log" 2>/dev/null; do
        kill -0 "$machine" 2>/dev/null || break
        sleep 0.5
    done
    # The machine is the child of `timeout`, which ends with it: the disk's lock is free then.
    # shellcheck disable=SC2046 # one process
    kill -KILL $(cat "/proc/$machine/task/$machine/children") 2>/dev/null || true
    wait "$machine" 2>/dev/null || true
    say "machine for ${3:-$name}: power cut, second boot"
}

# Ends a process of this script and everything below it.
end_tree() {
    local child
    for child in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do end_tree "$child"; done
    kill -KILL "$1" 2>/dev/null || true
}

# The second machine of a test, until this process ends.
run_peer() {
    local name=$1 log=$VM_DIR/$1.peer.log
    : >"$log"
    make_disk "$name.peer"
    cut_power "$name" "$log" "$name.peer"
    boot "$name" "$log" "$name.peer"
}

run_test() {
    local name=$1 root log
    root=$(mktemp -d "$VM_DIR/root.XXXXXX")
    log=$VM_DIR/$name.log
    make_root "$root" "$name"
    (cd "$root" && find . | "$STATE_DIR/busybox/bin/busybox" cpio -o -H newc 2>/dev/null) >"$VM_DIR/$name.cpio"
    rm -rf "$root"
    : >"$log"
    if needs "$name" guests || needs "$name" kubelet; then
        local VM_SECONDS=$((VM_SECONDS * 3))
    fi
    say "machine for $name: console in $log"
    # The kubelet counts what its folder takes, and the kernel says that of disks only.
    if needs "$name" "power cut" || needs "$name" kubelet; then make_disk "$name"; fi
    if needs "$name" "power cut"; then
        cut_power "$name" "$log"
    fi
    local peer=
    if needs "$name" "a peer"; then
        (run_peer "$name") &
        peer=$!
        # Also when this is interrupted: a process in the background ignores that.
        trap 'end_tree "$peer"' EXIT
    fi
    (boot "$name" "$log") || say "the machine was ended after $VM_SECONDS s"
    if [ -n "$peer" ]; then
        end_tree "$peer"
        wait "$peer" 2>/dev/null || true
        trap - EXIT
    fi
    rm -f "$VM_DIR/$name.cpio" "$VM_DIR/$name"{,.peer}.{img,cable}
    if ! grep -q "^$PASSED" "$log"; then
        [ -z "$peer" ] || tail -n 40 "$VM_DIR/$name.peer.log" >&2
        tail -n 40 "$log" >&2
        die "$name failed in its machine"
    fi
    grep '^vm-test:' "$log" >&2
}

for program in "$PROGRAMS_DIR/cwasi-compiler" "$TARGET_DIR/debug/cwasi-testbed"; do
    [ -e "$program" ] || die "there is no $program: make build"
done
mkdir -p "$VM_DIR"
unpack_for_vm
if [ $# = 0 ]; then
    mapfile -t names < <(basename -s .sh -a "$CHECKOUT"/tests/vm/*.sh)
    set -- "${names[@]}"
fi
for name in "$@"; do
    [ -e "$CHECKOUT/tests/vm/$name.sh" ] || die "there is no tests/vm/$name.sh"
    if needs "$name" kubelet; then build_programs kubelet pause; fi
done
for name in "$@"; do
    run_test "$name"
done
