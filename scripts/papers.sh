#!/usr/bin/env bash
# The tables and figures of the four papers that CWASI follows, with our numbers (benches/papers).
#
#   papers.sh quick|full [--exhibit PART-OF-AN-ID]   release code: target/papers/index.html
#   papers.sh smoke [--exhibit PART-OF-AN-ID]        each case once, with the programs of the tests: target/papers-smoke
#   papers.sh record                                 copies the results of target/papers to benches/papers/record
#
# Programs of other projects in the folder PEERS, or on PATH, become sides (docs/papers.md).
#
# TinyGo, which compiles the operator paper's functions in Go, is built by the first run (scripts/tinygo.sh).
#
# A table or figure that cannot be measured fails the run; a side that cannot be had is named in the report. The first
# quick or full run builds `wasmtime serve`; a smoke test uses it if it is there. Everything runs on private containerds
# below .cwasi/, which end with the script.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/wasmtime.sh"
cd "$CHECKOUT"
effort=${1:?usage: papers.sh full|quick|smoke [--exhibit PART-OF-AN-ID], or papers.sh record}

if [ "$effort" = record ]; then
    out=$TARGET_DIR/papers record=$CHECKOUT/benches/papers/record
    [ -e "$out/exhibits.md" ] || die "$out has no results: run make papers"
    cp "$out"/{claims,exhibits,conditions}.md "$record"
    # Without the file's name and time: the same samples give the same bytes.
    gzip --best --no-name <"$out/samples.csv" >"$record/samples.csv.gz"
    exit
fi

unpack_for_papers
if [ "$effort" = smoke ]; then
    "$CHECKOUT/scripts/test.sh" --build
    programs=$TARGET_DIR/debug out=$TARGET_DIR/papers-smoke
else
    "$CHECKOUT/scripts/guests.sh"
    "$CHECKOUT/scripts/functions.sh" --static
    install_wasmtime
    say "building the runtime and the measurements (release)"
    "$CHECKOUT/scripts/build.sh" --release --wasmedge
    cargo build --release -p cwasi-testbed
    cargo build --release --bins -p cwasi-papers -p bench-actions
    programs=$TARGET_DIR/release out=$TARGET_DIR/papers
fi
"$CHECKOUT/scripts/functions.sh" --tinygo
[ ! -x "$WASMTIME_DIR/bin/wasmtime" ] || export CWASI_BENCH_WASMTIME=$WASMTIME_DIR/bin/wasmtime
say "measuring"
"$programs/cwasi-papers" "$@" --out "$out"
