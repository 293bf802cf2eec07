# Static programs, with musl in place of glibc: they run on any Linux of their architecture. Sourced.
#
# Rust brings musl itself. ring's and BLAKE3's C is compiled with Debian's musl-gcc. For 64-bit ARM Debian has none: its
# cross compiler has glibc's headers, of which that C takes types only. libseccomp is Debian's archive, which was
# compiled for glibc: of glibc alone it wants one function, which is added to a copy of it.

STATIC_TARGET=$(uname -m)-unknown-linux-musl
STATIC_ARM64=aarch64-unknown-linux-musl
STATIC_PROGRAMS=$TARGET_DIR/$STATIC_TARGET

# static_environment TARGET: for cargo; makes the copy of libseccomp.
static_environment() {
    local target=$1 underscored=${1//-/_} folder=$TARGET_DIR/static-libraries/$1 archive compiler archiver
    case $target in
    "$STATIC_TARGET")
        compiler=musl-gcc archiver=ar archive=$(pkg-config --variable=libdir libseccomp)/libseccomp.a
        [ -e "$archive" ] || die "there is no $archive: scripts/setup.sh --static"
        ;;
    "$STATIC_ARM64")
        compiler=aarch64-linux-gnu-gcc archiver=aarch64-linux-gnu-ar
        archive=$STATE_DIR/arm64/root/usr/lib/aarch64-linux-gnu/libseccomp.a
        [ -e "$archive" ] || die "there is no $archive: scripts/setup.sh --arm64"
        export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=$compiler
        ;;
    *) die "there are no static programs for $target: use $STATIC_TARGET or $STATIC_ARM64" ;;
    esac
    if ! [ "$folder/libseccomp.a" -nt "$archive" ]; then
        mkdir -p "$folder"
        "$compiler" -O2 -c -o "$folder/fortify.o" -x c - <<'SOURCE'
#include <stdarg.h>
#include <stdio.h>
/* glibc's fprintf of code that was compiled with _FORTIFY_SOURCE. */
int __fprintf_chk(FILE *file, int flag, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int length = vfprintf(file, format, arguments);
    va_end(arguments);
    return length;
}
SOURCE
        cp "$archive" "$folder/libseccomp.a.new"
        "$archiver" r "$folder/libseccomp.a.new" "$folder/fortify.o"
        mv "$folder/libseccomp.a.new" "$folder/libseccomp.a"
    fi
    export LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH=$folder
    export "CC_$underscored=$compiler" "AR_$underscored=$archiver"
}

# static_check PROGRAM…: fails for one that wants a dynamic linker, which only a node without it would notice.
static_check() {
    local program
    for program in "$@"; do
        [[ $(readelf --program-headers --wide "$program") != *INTERP* ]] || die "$program is not static"
    done
}

# static_is_there TARGET: Rust's standard library for it
static_is_there() {
    local sysroot
    sysroot=$(cd "$CHECKOUT" && RUSTUP_AUTO_INSTALL=0 rustc --print sysroot 2>/dev/null) || return 1
    [ -d "$sysroot/lib/rustlib/$1" ]
}
