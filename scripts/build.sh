#!/usr/bin/env bash
# Builds the programs of a node side by side: the runtime, `cwasi`, and wasmtime's compiler.
#
#   build.sh [--release] [--wasmedge] [--static | --target TARGET] [--runtime-only] [-p PACKAGE…]
#   build.sh [--release] [--static | --target TARGET] --only PACKAGE
#
#   --release    optimized, into target/release; without it into target/debug
#   --wasmedge   the program of WasmEdge as well, which has to be installed (setup.sh --wasmedge)
#   --static     programs that need no library of the machine that they run on: target/ARCH-unknown-linux-musl/PROFILE
#   --target     for another architecture: target/TARGET/PROFILE. aarch64-unknown-linux-musl: static programs for 64-bit
#                ARM (setup.sh --arm64)
#   --runtime-only
#                neither `cwasi` nor wasmtime's compiler, which take longer than the runtime
#   -p PACKAGE   a package of the root workspace besides, such as the test bed's
#   --only PACKAGE
#                nothing but the program of this package, which has its name: the operator's image needs no other
#
# CWASI_BUILD_WITH_TESTS=yes builds all packages with their tests, if it is a debug build for this machine. A package that
# is built alone has fewer features of its libraries, so a build of tests after it would compile a hundred crates again.
#
# The compiler is a workspace of its own (compiler/Cargo.toml says why). It is built in the same folder, because half of
# its crates are the runtime's: cargo test --test structure -- lock_files checks that both have the same versions.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"
cd "$CHECKOUT"

options=() packages=() profile=debug target='' has_wasmedge='' runtime_only='' only=''
while [ $# -gt 0 ]; do
    case $1 in
    --release)
        options+=(--release)
        profile=release
        ;;
    --wasmedge)
        packages+=(-p cwasi-sandbox-wasmedge)
        has_wasmedge=yes
        ;;
    --static) target=$STATIC_TARGET ;;
    --target)
        target=${2:?--target wants a target of Rust}
        shift
        ;;
    --runtime-only) runtime_only=yes ;;
    -p)
        packages+=(-p "${2:?-p wants a package}")
        shift
        ;;
    --only)
        only=${2:?--only wants a package}
        shift
        ;;
    *) die "unknown argument $1: use --release, --static, --target TARGET, --wasmedge, --runtime-only, -p PACKAGE or --only PACKAGE" ;;
    esac
    shift
done
[ -z "$target" ] || options+=(--target "$target")
if [[ $target == *-musl ]]; then
    [ -z "$has_wasmedge" ] || die "WasmEdge is a shared library: it cannot be part of a static program"
    static_environment "$target"
fi
programs=$TARGET_DIR/${target:+$target/}$profile

if [ -n "$only" ]; then
    cargo build "${options[@]}" --bins -p "$only"
    [[ $target != *-musl ]] || static_check "$programs/$only"
    exit 0
fi
if [ -n "${CWASI_BUILD_WITH_TESTS:-}" ] && [ "${#options[@]}" = 0 ]; then
    cargo build --workspace --all-targets
else
    [ -n "$runtime_only" ] || packages+=(-p cwasi-cli)
    cargo build "${options[@]}" --bins -p cwasi "${packages[@]}"
fi
if [[ $target == *-musl ]]; then
    static_check "$programs"/{containerd-shim-cwasi-v1,cwasi-shim,cwasi-sandbox}
    [ -n "$runtime_only" ] || static_check "$programs/cwasi"
fi
[ -z "$runtime_only" ] || exit 0
# Beside the others, where shim and command look for it.
cargo build "${options[@]}" --manifest-path compiler/Cargo.toml --target-dir "$TARGET_DIR"
[[ $target != *-musl ]] || static_check "$programs/cwasi-compiler"
