#!/usr/bin/env bash
# The tables and figures of the four papers that CWASI follows, with our numbers (benches/papers).
#
#   papers.sh quick|full [--exhibit PART-OF-AN-ID]   release code: target/papers/index.html
#   papers.sh smoke [--exhibit PART-OF-AN-ID]        each case once, with the programs of the tests: target/papers-smoke
#   papers.sh record                                 copies the results of target/papers to benches/papers/record, and
#                                                    their numbers into docs/papers.md
#
# Programs of other projects in the folder PEERS, or on PATH, become sides (docs/papers.md).
#
# A full run goes on after the groups that an interrupted one has measured at the same revision, and any other with
# RESUME=yes; target/papers/kept has them.
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
    cp "$out"/{claims,exhibits,conditions}.md "$out/tables.txt" "$record"
    # Without names, owners and times: the same samples and plots give the same bytes.
    gzip --best --no-name <"$out/samples.csv" >"$record/samples.csv.gz"
    (cd "$out" && tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - -- *.svg) |
        gzip --best --no-name >"$record/plots.tar.gz"
    "$TARGET_DIR/release/cwasi-papers" quote "$record" docs/papers.md
    exit
fi

unpack_for_papers
if [ "$effort" = smoke ]; then
    "$CHECKOUT/scripts/test.sh" --build
    "$CHECKOUT/scripts/guests.sh" --papers
    programs=$TARGET_DIR/debug out=$TARGET_DIR/papers-smoke
else
    "$CHECKOUT/scripts/guests.sh" --papers
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
# A changed tree has no revision that a later run could go on at.
revision=$(git rev-parse --short HEAD) resume=()
if [ -n "$(git status --porcelain)" ]; then
    revision="$revision, changed"
elif [ "$effort" = full ] || [ -n "${RESUME:-}" ]; then
    resume=(--resume)
fi
# The CWASI paper's prototype looks for a Redis in its authors' network if nothing names another one; it needs none here.
export REDIS_IP=${REDIS_IP:-127.0.0.1:1}
say "measuring"
"$programs/cwasi-papers" "$@" --out "$out" --revision "$revision" "${resume[@]}"
