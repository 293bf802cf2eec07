#!/usr/bin/env bash
# A compiler of workspace crates that also lints: `lint_with_builds` (lib.sh) has Cargo use it. One build is then build,
# clippy and rustdoc, with warnings denied. `cargo clippy` and `cargo doc` would type-check each dependency once more,
# which takes longer than all lints. Cargo starts it with the compiler's path and arguments.
#
# - Clippy's driver compiles as rustc does, but leaves out MIR's optimizations. So it compiles unoptimized crates; an
#   optimized one (a guest) is compiled by rustc, and clippy only checks it.
# - rustdoc reads each library and program, and its pages are thrown away.
set -euo pipefail

rustc=$1
shift
optimized='' documented=yes crate=''
lint=() doc=()
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# Arguments for a check without code, and those that rustdoc knows.
previous=''
for argument in "$@"; do
    case $previous in
    --crate-name) crate=$argument ;;
    --test) documented='' ;;
    esac
    case $argument in
    --test) documented='' ;;
    opt-level=[1-9sz]) optimized=yes ;;
    esac
    case $previous in
    --out-dir) lint+=("$folder") ;;
    *)
        case $argument in
        --emit=*) lint+=(--emit=metadata) ;;
        # Cargo hears of a crate's files once, from the compiler.
        --json=*) lint+=("${argument//,artifacts/}") ;;
        *) lint+=("$argument") ;;
        esac
        ;;
    esac
    case $previous in
    --crate-name | --crate-type | --cfg | --check-cfg | --extern | -L | --target) doc+=("$previous" "$argument") ;;
    esac
    case $argument in
    --edition=* | --error-format=* | --json=* | *.rs) doc+=("$argument") ;;
    esac
    previous=$argument
done

# Questions of Cargo about the compiler have no crate.
case $crate in '' | ___ | build_script_*) exec "$rustc" "$@" ;; esac

# Their lines come in one piece each: Cargo reads them as JSON.
checks=()
if [ -n "$optimized" ]; then
    clippy-driver "$rustc" "${lint[@]}" >"$folder/clippy" 2>&1 &
    checks+=($! clippy)
    set -- "$rustc" "$@"
else
    set -- clippy-driver "$rustc" "$@"
fi
# Fuzz targets have no readers of their documentation.
[ "${CARGO_PKG_NAME:-}" != cwasi-fuzz ] || documented=''
if [ -n "$documented" ]; then
    rustdoc "${doc[@]}" --out-dir "$folder/pages" --document-private-items -D warnings \
        -A rustdoc::private-intra-doc-links >"$folder/rustdoc" 2>&1 &
    checks+=($! rustdoc)
fi
code=0
"$@" || code=$?
for ((i = 0; i < ${#checks[@]}; i += 2)); do
    wait "${checks[i]}" || [ "$code" != 0 ] || code=1
    # What the compiler has said already, rustdoc says again.
    cat "$folder/${checks[i + 1]}" >&2
done
exit "$code"
