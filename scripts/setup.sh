#!/usr/bin/env bash
# Installs missing tools for building, testing and the demo. Debian 12 and 13, as root.
#
# - Build dependencies come as ordinary packages; nothing is removed or started.
# - containerd, runc, busybox, Redis and what only tests need are only unpacked, below .cwasi/: their packages would
#   start services or replace what the machine has.
# - No package comes from another Debian release, but for the optional engine WasmEdge: its 0.14.1 is Debian 13's
#   package, and Debian 12 gets Debian 13 as an extra source with a low priority. Set WASMEDGE_INCLUDE_DIR and
#   WASMEDGE_LIB_DIR to use one from elsewhere.
#
# Before it changes anything, it lists all that it will install. Without an argument that is what the build and the
# documentation's pages need. Besides:
#
#   --check      only says what is missing (exit code 1 when something is)
#   --wasmedge   the engine WasmEdge, and libclang, with which its bindings are made
#   --static     what `build.sh --static` needs: musl for C, and Rust's standard library with it
#   --arm64      what static programs for 64-bit ARM need, and the machine that tests them: a C compiler, Rust's standard
#                library, and Debian's packages
#   --tests      what the tests need: WasmEdge, further packages, two more containerds (one is built, with Go), Valkey,
#                NSD, a registry of images
#   --languages  the same, and the toolchains of the languages in docs/languages.md and docs/components.md
#   --video      ffmpeg, which the demo films with, as the tests do
#   --lint       WasmEdge, and the tools of the other checks, one of which it builds (tools.sh)
#   --miri       the toolchain of Miri
#   --fuzz       WasmEdge, and cargo-fuzz, which it builds
#   --browser    Chromium for screenshots.sh
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/languages.sh"
source "$CHECKOUT/scripts/go.sh"
source "$CHECKOUT/scripts/containerd.sh"
source "$CHECKOUT/scripts/static.sh"
source "$CHECKOUT/scripts/arm64-packages.sh"
source "$CHECKOUT/scripts/tools.sh"

WASMEDGE_VERSION=0.14.1
RUST_TARGETS=(wasm32-wasip1 wasm32-wasip2)
TRIXIE_SOURCE=/etc/apt/sources.list.d/cwasi-trixie.sources
TRIXIE_PIN=/etc/apt/preferences.d/cwasi-trixie
POLICY=/usr/sbin/policy-rc.d
APT_OPTIONS=(-y --no-install-recommends --no-remove -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 -q)

# ---- what is missing -------------------------------------------------------------------------------

missing_packages() {
    command -v cc >/dev/null || echo "gcc libc6-dev"
    command -v pkg-config >/dev/null || echo pkg-config
    # The test bed's networks, and the clients of the documentation's pages.
    command -v ip >/dev/null || echo iproute2
    command -v curl >/dev/null || echo curl
    # libFuzzer
    [ -z "$wants_tests${TOOLS[*]}" ] || command -v c++ >/dev/null || echo g++
    if [ -n "$wants_tests" ]; then
        # Tests read our units with it.
        command -v systemd-analyze >/dev/null || echo systemd
        [ -x /usr/sbin/mke2fs ] || echo e2fsprogs
    fi
    [ -z "$wants_checks" ] || command -v shellcheck >/dev/null || echo shellcheck
    [ -z "$wants_video$wants_tests" ] || command -v ffmpeg >/dev/null || echo ffmpeg
    [ -e /etc/ssl/certs/ca-certificates.crt ] || echo ca-certificates
    # containerd-client generates its bindings when it is built.
    [ -n "${PROTOC:-}" ] || command -v protoc >/dev/null || echo protobuf-compiler
    [ -z "$wants_browser" ] || command -v chromium >/dev/null || echo "chromium fonts-dejavu-core"
    pkg-config --exists libseccomp 2>/dev/null || echo libseccomp-dev
    if [ -n "$wants_wasmedge" ]; then
        # bindgen wants libclang and clang's own headers.
        [ -n "${LIBCLANG_PATH:-}" ] || compgen -G '/usr/lib/llvm-*/lib/libclang.so' >/dev/null || echo libclang-dev
    fi
    [ -z "$wants_static" ] || command -v musl-gcc >/dev/null || echo musl-tools
    [ -z "$wants_arm64" ] || missing_cross_compiler
}

wasmedge_is_there() {
    [ -n "${WASMEDGE_INCLUDE_DIR:-}${WASMEDGE_LIB_DIR:-}" ] && return
    grep -qs "WASMEDGE_VERSION \"$WASMEDGE_VERSION\"" /usr/include/wasmedge/version.h
}

rust_channel() { sed -n 's/^channel = "\(.*\)"/\1/p' "$CHECKOUT/rust-toolchain.toml"; }

rust_is_there() {
    local sysroot
    sysroot=$(cd "$CHECKOUT" && RUSTUP_AUTO_INSTALL=0 rustc --print sysroot 2>/dev/null) || return 1
    local target
    for target in "${RUST_TARGETS[@]}"; do
        [ -d "$sysroot/lib/rustlib/$target" ] || return 1
    done
    command -v cargo >/dev/null
}

# ---- installing ------------------------------------------------------------------------------------

# Keeps Debian's maintainer scripts from starting or restarting services while we install.
forbid_services() {
    export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1
    [ -e "$POLICY" ] && return
    trap 'rm -f "$POLICY"' EXIT
    trap 'exit 130' INT TERM
    printf '#!/bin/sh\n# Temporary: written by CWASI'"'"'s scripts/setup.sh, removed at its end.\nexit 101\n' >"$POLICY"
    chmod 755 "$POLICY"
}

# The suite (trixie, stable…) of the machine's own sources that has the engine, empty when none has.
wasmedge_suite() {
    apt-cache madison libwasmedge-dev |
        awk -F'|' -v v="$WASMEDGE_VERSION" 'index($2, " " v) == 1 && !/Sources/ {
            split($3, f, " "); sub("/.*", "", f[2]); print f[2]; exit }'
}

add_trixie() {
    local uri
    uri=$(archive_uri)
    say "adding Debian 13 as a source of low priority: $TRIXIE_SOURCE, $TRIXIE_PIN"
    cat >"$TRIXIE_SOURCE" <<SOURCE
# For CWASI: WasmEdge $WASMEDGE_VERSION is packaged since Debian 13.
Types: deb
URIs: $uri
Suites: trixie
Components: main
Signed-By: $ARCHIVE_KEYRING
SOURCE
    cat >"$TRIXIE_PIN" <<PIN
# For CWASI: nothing comes from Debian 13 unless asked for.
Package: *
Pin: release n=trixie
Pin-Priority: 100
PIN
    apt-get update -q -o Acquire::Retries=3 >&2
}

install_wasmedge() {
    local suite
    suite=$(wasmedge_suite)
    if [ -z "$suite" ]; then
        add_trixie
        suite=$(wasmedge_suite)
    fi
    [ -n "$suite" ] || die "no WasmEdge $WASMEDGE_VERSION in this machine's package sources: install it yourself and set WASMEDGE_INCLUDE_DIR and WASMEDGE_LIB_DIR"
    say "installing WasmEdge $WASMEDGE_VERSION from $suite"
    apt-get install "${APT_OPTIONS[@]}" -t "$suite" libwasmedge-dev >&2
}

install_rust() {
    local channel
    channel=$(rust_channel)
    if ! command -v rustup >/dev/null; then
        command -v rustc >/dev/null || die "no Rust toolchain: install rustup (https://rustup.rs), then run this again"
        die "this Rust lacks one of the targets ${RUST_TARGETS[*]}: install rustup (https://rustup.rs), or your distribution's Rust $channel with these targets"
    fi
    say "installing Rust $channel with targets ${RUST_TARGETS[*]}"
    rustup toolchain install "$channel" --profile minimal -c rustfmt -c clippy "${RUST_TARGETS[@]/#/--target=}" --no-self-update >&2
}

missing_musl() {
    [ -z "$wants_static" ] || static_is_there "$STATIC_TARGET" || echo "$STATIC_TARGET"
    [ -z "$wants_arm64" ] || static_is_there "$STATIC_ARM64" || echo "$STATIC_ARM64"
}

# install_musl TARGET…
install_musl() {
    command -v rustup >/dev/null || die "static programs need rustup (https://rustup.rs)"
    say "installing Rust's standard library for $*"
    (cd "$CHECKOUT" && rustup target add "$@" >&2)
}

# ---- main ------------------------------------------------------------------------------------------

check=; wants_wasmedge=; wants_static=; wants_arm64=; wants_tests=; wants_languages=; wants_video=; wants_checks=; wants_miri=; wants_browser=
for argument in "$@"; do
    case $argument in
    --check) check=yes ;;
    --wasmedge) wants_wasmedge=yes ;;
    --static) wants_static=yes ;;
    --arm64) wants_arm64=yes ;;
    --tests)
        wants_tests=yes
        wants_wasmedge=yes
        ;;
    --languages)
        wants_tests=yes
        wants_wasmedge=yes
        wants_languages=yes
        UNPACKED+=("${UNPACKED_FOR_LANGUAGES[@]}")
        ;;
    --video) wants_video=yes ;;
    --lint)
        wants_checks=yes
        wants_wasmedge=yes
        TOOLS+=("$CARGO_DENY")
        ;;
    --miri) wants_miri=yes ;;
    --fuzz)
        wants_wasmedge=yes
        TOOLS+=("$CARGO_FUZZ")
        ;;
    --browser) wants_browser=yes ;;
    *) die "unknown argument $argument: use --arm64, --browser, --check, --fuzz, --languages, --lint, --miri, --static, --tests, --video, --wasmedge or none" ;;
    esac
done
[ -z "$wants_tests" ] || UNPACKED+=("${UNPACKED_FOR_TESTS[@]}")
packages=$(missing_packages | tr '\n' ' ')
unpack=$(missing_unpacked)
languages=
if [ -n "$wants_languages" ] && ! languages_are_there; then languages=$LANGUAGES; fi
wasmedge=
if [ -n "$wants_wasmedge" ] && ! wasmedge_is_there; then wasmedge="WasmEdge $WASMEDGE_VERSION (libwasmedge-dev)"; fi
rust=; rust_is_there || rust="Rust $(rust_channel) with targets ${RUST_TARGETS[*]}"
containerd_2=
if [ -n "$wants_tests" ] && ! containerd_2_is_there; then containerd_2="containerd $CONTAINERD_2_VERSION"; fi
tools=$(missing_tools)
miri=
if [ -n "$wants_miri" ] && ! miri_is_there; then miri="$NIGHTLY with ${NIGHTLY_COMPONENTS[*]}"; fi
musl=$(missing_musl)
arm64=
if [ -n "$wants_arm64" ] && ! arm64_is_there; then arm64="${ARM64_DEBS[*]} $ARM64_KERNEL"; fi

if [ -z "$packages$unpack$wasmedge$rust$containerd_2$languages$tools$miri$musl$arm64" ]; then
    say "set-up: everything is there"
    exit 0
fi
say "set-up is about to install:"
[ -z "$packages" ] || printf '      packages: %s\n' "$packages" >&2
if [ -n "$wasmedge" ]; then
    printf '      engine: %s\n' "$wasmedge" >&2
    # The lists may be too old to tell.
    [ -n "$(wasmedge_suite)" ] || printf '      package source, if the ones of this machine do not have this engine: %s\n' \
        "Debian 13, with low priority: $TRIXIE_SOURCE, $TRIXIE_PIN" >&2
fi
[ -z "$rust" ] || printf '      toolchain: %s\n' "$rust" >&2
[ -z "$musl" ] || printf '      standard library for %s\n' "$(echo $musl)" >&2
[ -z "$arm64" ] || printf '      unpacked below %s, not installed: %s\n' "$ARM64_DIR" "$arm64" >&2
[ -z "$unpack" ] || printf '      unpacked below %s, not installed: %s\n' "$STATE_DIR" "$(echo $unpack)" >&2
[ -z "$languages" ] || printf '      unpacked below %s, not installed: %s\n' "$LANGUAGES_DIR" "$languages" >&2
[ -z "$miri" ] || printf '      toolchain of a check: %s\n' "$miri" >&2
[ -z "$tools$containerd_2" ] || printf '      built below %s, not installed: %s\n' "$STATE_DIR" "$(echo $tools $containerd_2)" >&2
[ -z "$check" ] || exit 1
command -v apt-get >/dev/null || die "set-up knows Debian 12 and 13 only; elsewhere install the above yourself"
if [ -n "$packages$wasmedge" ]; then
    [ "$(id -u)" = 0 ] || die "installing packages needs root: run scripts/setup.sh as root once"
    forbid_services
    say "reading package lists"
    apt-get update -q -o Acquire::Retries=3 >&2
fi
if [ -n "$packages" ]; then
    say "installing packages"
    # shellcheck disable=SC2086 # one word per package
    apt-get install "${APT_OPTIONS[@]}" $packages >&2
fi
[ -z "$wasmedge" ] || install_wasmedge
[ -z "$rust" ] || install_rust
# shellcheck disable=SC2086 # one word per target
[ -z "$musl" ] || install_musl $musl
[ -z "$arm64" ] || unpack_arm64
[ -z "$unpack" ] || unpack_missing
[ -z "$containerd_2" ] || install_containerd_2
[ -z "$languages" ] || install_languages
[ -z "$miri" ] || install_miri
[ -z "$tools" ] || install_tools
say "set-up: done"
