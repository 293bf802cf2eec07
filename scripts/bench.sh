#!/usr/bin/env bash
# Benches of release code: whole paths beside their alternatives (cwasi-bench), and parts (criterion).
#
#   bench.sh run|quick [--case PART-OF-A-NAME]
#   bench.sh scale [--quick] [--case PART-OF-A-GROUP]   how cost grows
#
# Everything runs on private containerds below .cwasi/, which end with the script. Writes report.json and report.html
# to target/bench, and with `run` criterion's reports to target/criterion; with `scale` to target/bench-scale, and
# report.csv, too.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
effort=${1:?usage: bench.sh run|quick|scale [--quick] [--case PART-OF-A-NAME]}
out=$TARGET_DIR/bench
[ "$effort" != scale ] || out=$TARGET_DIR/bench-scale

"$CHECKOUT/scripts/guests.sh"
say "building the runtime and the benches (release)"
"$CHECKOUT/scripts/build.sh" --release --wasmedge
cargo build --release -p cwasi-testbed
cargo build --release -p cwasi-bench
code=0
"$TARGET_DIR/release/cwasi-bench" "$@" --out "$out" || code=$?
if [ "$effort" = run ] && [ $# -eq 1 ]; then
    say "parts"
    cargo bench --bench parts
    cargo test --release --test worker_life -- times
fi
exit "$code"
