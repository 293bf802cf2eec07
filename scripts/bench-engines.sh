#!/usr/bin/env bash
# Benches of the two engines in turns, because a shared machine is not as fast at noon as at night.
#
#   bench-engines.sh [PART-OF-A-CASE'S-NAME [RUNS]]
#
# Runs the cases with WasmEdge and wasmtime alternately, RUNS times each (3). Prints for each case the medians of both,
# their ratio, and the quartiles of the ratios of each pair of runs. target/bench-engines keeps the reports, with each
# engine beside the baselines.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
case=${1-}
runs=${2:-3}
FOLDER=$TARGET_DIR/bench-engines

# run ENGINE NUMBER
run() {
    say "$1, run $2 of $runs"
    CWASI_TEST_ENGINE=$1 "$TARGET_DIR/release/cwasi-bench" quick --case "$case" --out "$FOLDER/$1-$2" ||
        die "a case with $1 could not run; its message is above"
}

scripts/guests.sh
say "building the runtime and the benches (release)"
scripts/build.sh --release --wasmedge -p cwasi-testbed -p cwasi-bench
rm -rf "$FOLDER"
for number in $(seq "$runs"); do
    run wasmedge "$number"
    run wasmtime "$number"
done
"$TARGET_DIR/release/cwasi-bench" compare --base-name wasmedge --base "$FOLDER"/wasmedge-*/report.json \
    --present-name wasmtime --present "$FOLDER"/wasmtime-*/report.json
