# Debian's packages for 64-bit ARM: what static programs are linked with, and what a machine with them needs. Sourced.

ARM64_DIR=$STATE_DIR/arm64
ARM64_ROOT=$ARM64_DIR/root
ARM64_LIBRARIES=/usr/lib/aarch64-linux-gnu
# Beside their dependencies.
ARM64_DEBS=(libseccomp-dev busybox-static containerd runc)
ARM64_KERNEL=linux-image-cloud-arm64
# Dependencies that neither the linker nor the machine's programs use.
ARM64_UNUSED='(systemd|udev|coreutils|initramfs-tools-core|klibc-utils)_*'

arm64_is_there() { [ "$(cat "$ARM64_DIR/VERSION" 2>/dev/null)" = "${ARM64_DEBS[*]}" ]; }

# Unpacks the packages and all that they depend on, from a mirror for that architecture.
unpack_arm64() {
    local deb apt=(private_apt apt-get -o APT::Architecture=arm64 -o APT::Architectures=arm64)
    rm -rf "$ARM64_DIR"
    mkdir -p "$ARM64_ROOT/usr"/{bin,lib,sbin} "$ARM64_DIR/kernel"
    for folder in bin lib sbin; do ln -s "usr/$folder" "$ARM64_ROOT/$folder"; done
    private_apt_sources trixie
    say "unpacking ${ARM64_DEBS[*]} and $ARM64_KERNEL for 64-bit ARM into $ARM64_DIR"
    "${apt[@]}" update >&2
    "${apt[@]}" install -y --no-install-recommends --download-only -o Debug::NoLocking=1 \
        "${ARM64_DEBS[@]}" "$ARM64_KERNEL" >/dev/null
    shopt -s extglob
    for deb in "$APT_PRIVATE"/cache/archives/*.deb; do
        # shellcheck disable=SC2254 # a pattern
        case ${deb##*/} in
        linux-image-*) dpkg-deb -x "$deb" "$ARM64_DIR/kernel" ;;
        @$ARM64_UNUSED) ;;
        # The folders of older packages are links.
        *) dpkg-deb --fsys-tarfile "$deb" | tar --extract --keep-directory-symlink --directory "$ARM64_ROOT" ;;
        esac
    done
    rm -rf "${ARM64_ROOT:?}"/usr/share "$ARM64_ROOT/usr/lib"/{systemd,modules,firmware} "$ARM64_DIR"/kernel/usr "$APT_PRIVATE"
    echo "${ARM64_DEBS[*]}" >"$ARM64_DIR/VERSION"
}

# The libraries that a program for 64-bit ARM loads, those of libraries and the dynamic linker included: their paths in a
# machine, and where they are here.
arm64_libraries() {
    local file name seen=" "
    local files=("$1")
    echo "/lib/ld-linux-aarch64.so.1 $ARM64_ROOT/usr/lib/ld-linux-aarch64.so.1"
    while [ ${#files[@]} -gt 0 ]; do
        file=${files[0]}
        files=("${files[@]:1}")
        for name in $(readelf --dynamic "$file" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p'); do
            [[ $seen != *" $name "* ]] || continue
            seen+="$name "
            [ -e "$ARM64_ROOT$ARM64_LIBRARIES/$name" ] || continue
            echo "$ARM64_LIBRARIES/$name $ARM64_ROOT$ARM64_LIBRARIES/$name"
            files+=("$ARM64_ROOT$ARM64_LIBRARIES/$name")
        done
    done
}

# On such a machine the ordinary compiler is the one.
missing_cross_compiler() {
    [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-g++ >/dev/null || echo "g++-aarch64-linux-gnu libc6-dev-arm64-cross"
}
