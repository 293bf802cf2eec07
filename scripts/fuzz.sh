#!/usr/bin/env bash
# Fuzz targets (fuzz/): whatever reads what another process, an image or Redis wrote.
#
#   fuzz.sh SECONDS [TARGET…]  each target (or these) for so long, as many at a time as there are processors
#   fuzz.sh replay             each target once with each input of the checkout, or some random ones, without a build
#   fuzz.sh seeds              writes fuzz/corpus again
#
# A target begins with the inputs of fuzz/corpus, of fuzz/regressions (what once broke it) and of earlier runs
# (target/fuzz/found). An input that breaks it is kept in fuzz/regressions: commit it with the fix.
#
# Without a sanitizer: the targets' code is safe Rust but for system calls, so what there is to find are panics,
# overflows (both are checked), wrong results and memory. That costs a quarter of a build with AddressSanitizer, and
# needs no nightly compiler.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/tools.sh"
# Longest that one input may take, in seconds, and most memory of a target, in MiB.
INPUT_SECONDS=60
MEMORY_MIB=2048
# Of a target without inputs in the checkout, when all are replayed.
RANDOM_INPUTS=10000

host=$(rustc -vV | sed -n 's/^host: //p')
built=$TARGET_DIR/fuzz/$host/debug
cd "$CHECKOUT/fuzz"

build() {
    say "building the fuzz targets"
    # Twice the inputs a second of an unoptimized build, which takes as long to make.
    PATH=$TOOLS_DIR/bin:$PATH CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        cargo fuzz build --dev --sanitizer none --target "$host" --target-dir "$TARGET_DIR/fuzz"
}

# One target; its last lines are shown when it fails, one line with figures when it does not.
run() {
    local target=$1 seconds=$2 log=$3/$1.log found=$TARGET_DIR/fuzz/found/$1
    local inputs=("$found")
    mkdir -p "$found" "regressions/$target"
    for folder in "corpus/$target" "regressions/$target"; do
        if [ -d "$folder" ]; then inputs+=("$folder"); fi
    done
    if TMPDIR=$3 "$built/$target" -max_total_time="$seconds" -timeout="$INPUT_SECONDS" -rss_limit_mb="$MEMORY_MIB" \
        -print_final_stats=1 -artifact_prefix="regressions/$target/" "${inputs[@]}" >"$log" 2>&1; then
        rmdir --ignore-fail-on-non-empty "regressions/$target"
        awk -v target="$target" '/ cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") cov = $(i + 1); else if ($i == "corp:") corpus = $(i + 1) }
            /number_of_executed_units/ { runs = $2 }
            /average_exec_per_sec/ { rate = $2 }
            END { printf "%-14s %10d runs %8d/s  coverage %5d  inputs %s\n", target, runs, rate, cov, corpus }' "$log"
    else
        tail -n 40 "$log" >&2
        printf '%-14s FAILED: its input is in fuzz/regressions/%s\n' "$target" "$target"
        return 1
    fi
}

# Those programs know nothing of coverage, and were built with the tests.
replay() {
    local target=$1 inputs=()
    mapfile -t inputs < <(find "corpus/$target" "regressions/$target" -type f 2>/dev/null)
    # Some need no first inputs.
    [ "${#inputs[@]}" -gt 0 ] || inputs=(-seed=1 "-runs=$RANDOM_INPUTS")
    TMPDIR=$2 "$TARGET_DIR/debug/$target" -timeout="$INPUT_SECONDS" -rss_limit_mb="$MEMORY_MIB" \
        -artifact_prefix="$2/" "${inputs[@]}" >"$2/$target.log" 2>&1 || {
        tail -n 40 "$2/$target.log" >&2
        return 1
    }
}

if [ "${1:-}" = seeds ]; then
    build
    exec "$built/seeds" corpus
fi
mapfile -t targets < <(basename -s .rs fuzz_targets/*.rs)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if [ "${1:-}" = replay ]; then
    for target in "${targets[@]}"; do
        replay "$target" "$scratch" || die "$target fails with an input of fuzz/corpus or fuzz/regressions"
    done
    exit
fi
seconds=${1:?usage: fuzz.sh SECONDS [TARGET…]}
[[ $seconds =~ ^[1-9][0-9]*$ ]] || die "$seconds is no number of seconds"
shift
[ $# -gt 0 ] || set -- "${targets[@]}"
build
say "fuzzing $# targets, $seconds s each"
export -f run
export built TARGET_DIR INPUT_SECONDS MEMORY_MIB
printf '%s\n' "$@" | xargs -P "$(nproc)" -I{} bash -c 'run "$@"' run {} "$seconds" "$scratch" ||
    die "a target failed: run it again with the input, $built/TARGET INPUT"
