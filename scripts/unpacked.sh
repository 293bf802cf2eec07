# Debian packages that are unpacked below .cwasi/ and never installed. Sourced by setup.sh.
#
# A private apt configuration with lists and cache below .cwasi/apt reads suites that the machine does not
# have; the machine's own sources only tell where its mirror is.

ARCHIVE_KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg
APT_PRIVATE=$STATE_DIR/apt

# folder below .cwasi, suite, wanted version (a prefix), packages. These are what the documentation's pages and the
# demo use: the private containerd of cwasi-testbed, and Redis.
UNPACKED=(
    "containerd-1.6 bookworm 1.6.20 containerd"
    "runc bookworm - runc"
    "busybox bookworm - busybox-static"
    "redis-7 bookworm 5:7.0 redis-server redis-tools libjemalloc2 liblzf1"
)

# What only the tests and benches need.
UNPACKED_FOR_TESTS=(
    "containerd-1.7 trixie 1.7.24 containerd"
    # Builds containerd 2.x (containerd.sh) and compiles the languages' examples.
    "go trixie 1.24 golang-1.24-go golang-1.24-src"
    "wasmedge trixie 0.14.1 wasmedge"
    "valkey-8 trixie 8. valkey-server valkey-tools libjemalloc2 liblzf1"
    "nsd bookworm 4.6 nsd libevent-2.1-7 libfstrm0 libprotobuf-c1"
    "registry bookworm 2.8 docker-registry"
)

# What only the tests in virtual machines need (scripts/vm.sh); the kernel's package depends on its version.
QEMU_ROW="qemu trixie 1:10.0 qemu-system-x86 qemu-system-arm qemu-system-data seabios libaio1t64 libcapstone5 libdaxctl1 libfdt1 libfuse3-4
    libgnutls30t64 libhogweed6t64 libibverbs1 libndctl6 libnettle8t64 libnl-3-200 libnl-route-3-200 libpmem1 librdmacm1t64
    libslirp0 libunistring5 liburing2 libvdeplug2t64"
KERNEL_PACKAGE=linux-image-cloud-amd64
# With the libraries that every Debian has, of which the machine gets this one's.
SYSTEMD_ROW="systemd trixie 257 systemd libsystemd-shared libssl3t64 libapparmor1"

# What only the test cluster needs (scripts/kubernetes.sh). Go is that of the tests, too.
UNPACKED_FOR_KUBERNETES=(
    "go trixie 1.24 golang-1.24-go golang-1.24-src"
    "etcd trixie 3.5 etcd-server"
    "cni trixie 1.1 containernetworking-plugins"
    "iptables bookworm 1.8 iptables libip4tc2 libip6tc2 libxtables12 libnftnl11 libmnl0 libnfnetlink0
        libnetfilter-conntrack3"
)

# What only the book needs (scripts/book.sh).
BOOK_ROW="mdbook trixie 0.4.48 mdbook"

missing_unpacked() {
    local folder
    for row in "${UNPACKED[@]}"; do
        read -r folder _ <<<"$row"
        [ -e "$STATE_DIR/$folder/VERSION" ] || echo "$folder"
    done
}

# Base address of the Debian mirror that this machine uses already.
archive_uri() {
    local uri
    uri=${DEBIAN_MIRROR:-$(apt-get --print-uris update 2>/dev/null |
        sed -nE "s#^'(.*/)dists/(bookworm|trixie|oldstable|stable|testing|sid|unstable)/InRelease'.*#\1#p" | head -n 1)}
    [ -n "$uri" ] || die "this machine's package sources name no Debian mirror: set DEBIAN_MIRROR=http://…/debian"
    echo "$uri"
}

private_apt() {
    local command=$1
    shift
    # The versions are named and the lists signed, so a mirror that lags behind will do.
    "$command" -q -o Acquire::Retries=3 -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none -o APT::Sandbox::User=root \
        -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled=false \
        -o Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled=false \
        -o Dir::Etc::SourceList="$APT_PRIVATE/sources.list" -o Dir::Etc::SourceParts=/dev/null \
        -o Dir::Etc::Preferences=/dev/null -o Dir::Etc::PreferencesParts=/dev/null \
        -o Dir::State="$APT_PRIVATE/state" -o Dir::State::status="$APT_PRIVATE/status" \
        -o Dir::Cache="$APT_PRIVATE/cache" -o Dir::Cache::pkgcache=pkgcache.bin "$@"
}

# The private configuration, with these suites.
private_apt_sources() {
    local uri suite
    uri=$(archive_uri)
    mkdir -p "$APT_PRIVATE/state/lists/partial" "$APT_PRIVATE/cache/archives/partial"
    : >"$APT_PRIVATE/status"
    for suite in "$@"; do
        echo "deb [signed-by=$ARCHIVE_KEYRING] $uri $suite main"
    done >"$APT_PRIVATE/sources.list"
}

private_apt_update() {
    private_apt_sources bookworm trixie
    say "reading package lists of Debian 12 and 13 into $APT_PRIVATE"
    private_apt apt-get update -o Dir::State::Lists="$APT_PRIVATE/state/lists" >&2
}

# Version of package $1 in suite $2 that starts with $3 ("-": any); the suite's newest when it is gone.
version_in_suite() {
    private_apt apt-cache madison "$1" | awk -F'|' -v suite="$2" -v wanted="$3" '
        { gsub(/ /, "", $2); split($3, f, " "); sub("/.*", "", f[2]) }
        f[2] != suite || /Sources/ { next }
        newest == "" { newest = $2 }
        exact == "" && index($2, wanted) == 1 { exact = $2 }
        END { print exact != "" ? exact : newest }'
}

unpack_row() {
    local folder=$1 suite=$2 wanted=$3 package version target
    shift 3
    target=$STATE_DIR/$folder
    rm -rf "$target" "$target.new"
    mkdir -p "$target.new/debs"
    for package in "$@"; do
        local prefix=-
        # The wanted version is the first package's.
        [ "$package" = "$1" ] && prefix=$wanted
        version=$(version_in_suite "$package" "$suite" "$prefix")
        [ -n "$version" ] || die "Debian $suite on $(archive_uri) has no $package"
        if [ "$prefix" != - ] && [[ $version != "$prefix"* ]]; then
            say "note: Debian $suite no longer has $package $prefix; taking $version"
        fi
        say "unpacking $package $version ($suite) into $target"
        (cd "$target.new/debs" && private_apt apt-get download "$package=$version" >/dev/null)
        dpkg-deb -x "$target.new/debs/$package"_*.deb "$target.new"
        echo "$package $version" >>"$target.new/VERSION"
    done
    if [ -d "$target.new/usr/share/seabios" ]; then
        mkdir "$target.new/firmware"
        cp -L "$target.new"/usr/share/{qemu,seabios}/*.bin "$target.new/firmware/"
    fi
    # Programs and their libraries only: no unit files, no documentation, no stress tests.
    if [ "$folder" != systemd ]; then
        rm -rf "$target.new"/{lib,usr/lib}/systemd
    fi
    rm -rf "$target.new"/{debs,etc,usr/bin/containerd-stress} \
        "$target.new"/usr/share/{bash-completion,doc,lintian,man,zsh}
    mv "$target.new" "$target"
}

unpack_missing() {
    local row folder
    private_apt_update
    for row in "${UNPACKED[@]}"; do
        read -r folder _ <<<"$row"
        # shellcheck disable=SC2086 # fields of the row
        [ -e "$STATE_DIR/$folder/VERSION" ] || unpack_row $row
    done
    # Lists and archives are of no use any more.
    rm -rf "$APT_PRIVATE"
}

unpack_for_vm() {
    local version kernel folder missing=
    # Unpacked before the machines had network cards.
    [ -e "$STATE_DIR/kernel/modules" ] || rm -rf "$STATE_DIR/kernel"
    for folder in qemu kernel systemd; do
        [ -e "$STATE_DIR/$folder/VERSION" ] || missing=yes
    done
    [ -n "$missing" ] || return 0
    private_apt_update
    version=$(version_in_suite "$KERNEL_PACKAGE" trixie 6.12)
    kernel=$(private_apt apt-cache show "$KERNEL_PACKAGE=$version" | sed -nE 's/^Depends: (linux-image-[^ ,]+).*/\1/p')
    [ -n "$kernel" ] || die "Debian trixie on $(archive_uri) has no $KERNEL_PACKAGE"
    # shellcheck disable=SC2086 # fields of the row
    [ -e "$STATE_DIR/qemu/VERSION" ] || unpack_row $QEMU_ROW
    # shellcheck disable=SC2086 # fields of the row
    [ -e "$STATE_DIR/systemd/VERSION" ] || unpack_row $SYSTEMD_ROW
    [ -e "$STATE_DIR/kernel/VERSION" ] || unpack_row kernel trixie - "$kernel"
    mkdir -p "$STATE_DIR/kernel/modules"
    find "$STATE_DIR/kernel" -path "$STATE_DIR/kernel/modules" -prune -o \( -name 'virtio_net.ko*' -o -name 'net_failover.ko*' -o -name 'failover.ko*' \) \
        -exec mv -t "$STATE_DIR/kernel/modules" {} +
    rm -rf "$STATE_DIR"/kernel/{lib,usr} "$APT_PRIVATE"
}

unpack_for_book() {
    [ -e "$STATE_DIR/mdbook/VERSION" ] && return
    UNPACKED=("$BOOK_ROW")
    unpack_missing
}

# unpack_for_kubernetes [FOLDER…]: what the test cluster needs; with folders, only these
unpack_for_kubernetes() {
    local row folder rows=()
    for row in "${UNPACKED_FOR_KUBERNETES[@]}"; do
        read -r folder _ <<<"$row"
        [ $# = 0 ] || [[ " $* " == *" $folder "* ]] || continue
        [ -e "$STATE_DIR/$folder/VERSION" ] || rows+=("$row")
    done
    [ "${#rows[@]}" -gt 0 ] || return 0
    UNPACKED=("${rows[@]}")
    unpack_missing
}

# What only the papers' tables need (scripts/papers.sh): the servers that two of the nine functions ask, with the
# libraries that not every Debian has.
UNPACKED_FOR_PAPERS=(
    "nginx bookworm 1.22 nginx libpcre2-8-0 libssl3"
    "postgresql bookworm 15. postgresql-15 libicu72 libldap-2.5-0 libsasl2-2 libxml2 libssl3 libpam0g libgssapi-krb5-2
        libkrb5-3 libk5crypto3 libkrb5support0 libkeyutils1"
)

unpack_for_papers() {
    UNPACKED=("${UNPACKED_FOR_PAPERS[@]}")
    [ -z "$(missing_unpacked)" ] || unpack_missing
}
