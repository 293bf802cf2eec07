# Static programs, with musl in place of glibc: they run on any Linux of their architecture. Sourced.
#
# Rust brings musl itself. ring's and BLAKE3's C is compiled with Debian's musl-gcc. libseccomp is Debian's archive, which
# was compiled for glibc: of glibc alone it wants one function, which is added to a copy of it.

STATIC_TARGET=$(uname -m)-unknown-linux-musl
STATIC_PROGRAMS=$TARGET_DIR/$STATIC_TARGET
STATIC_LIBRARIES=$TARGET_DIR/static-libraries

# For cargo; makes the copy of libseccomp.
static_environment() {
    local archive underscored=${STATIC_TARGET//-/_}
    archive=$(pkg-config --variable=libdir libseccomp)/libseccomp.a
    [ -e "$archive" ] || die "there is no $archive: scripts/setup.sh --static"
    if ! [ "$STATIC_LIBRARIES/libseccomp.a" -nt "$archive" ]; then
        mkdir -p "$STATIC_LIBRARIES"
        musl-gcc -O2 -c -o "$STATIC_LIBRARIES/fortify.o" -x c - <<'SOURCE'
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
        cp "$archive" "$STATIC_LIBRARIES/libseccomp.a.new"
        ar r "$STATIC_LIBRARIES/libseccomp.a.new" "$STATIC_LIBRARIES/fortify.o"
        mv "$STATIC_LIBRARIES/libseccomp.a.new" "$STATIC_LIBRARIES/libseccomp.a"
    fi
    export LIBSECCOMP_LINK_TYPE=static LIBSECCOMP_LIB_PATH=$STATIC_LIBRARIES
    export "CC_$underscored=musl-gcc"
}

static_is_there() {
    local sysroot
    sysroot=$(cd "$CHECKOUT" && RUSTUP_AUTO_INSTALL=0 rustc --print sysroot 2>/dev/null) || return 1
    [ -d "$sysroot/lib/rustlib/$STATIC_TARGET" ]
}
