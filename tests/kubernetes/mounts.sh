# The files of a machine of the test cluster. Sourced by machine.sh, and by tests/machine.rs.

# On disk: larger than memory should hold, or the upper directory of an overlay.
ON_DISK=(var/lib/containerd var/lib/kubelet var/lib/etcd var/log)

# Mounts below $ROOT what the machine sees: this machine's root, whose changes end with it, and the checkout at its own
# path. $DIR is the machine's disk. Runs in a mount namespace of its own.
mount_root() {
    local folder
    mount --make-rprivate /
    mkdir -p "$ROOT" "$DIR/memory"
    mount -t tmpfs -o mode=755 tmpfs "$DIR/memory"
    mkdir "$DIR/memory/upper" "$DIR/memory/work"
    mount -t overlay -o "lowerdir=/,upperdir=$DIR/memory/upper,workdir=$DIR/memory/work" overlay "$ROOT"

    for folder in "${ON_DISK[@]}"; do
        mkdir -p "$ROOT/$folder" "$DIR/disk/$folder"
        mount --bind "$DIR/disk/$folder" "$ROOT/$folder"
    done
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

    # Last: the checkout may be below /tmp or /run.
    mkdir -p "$ROOT$CHECKOUT"
    mount --bind "$CHECKOUT" "$ROOT$CHECKOUT"
}

# The cgroups of a machine.
mount_hierarchies() {
    local hierarchy name
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
}
