#!/usr/bin/env bash
# The fault suite (tests/e2e/soak) for longer than `make test` runs it, on all three containerds one after the other; then
# starts that are interrupted (tests/e2e/interrupted.rs), as many for each containerd and victim as there are minutes.
#
#   soak.sh MINUTES [SEED]   the seed of a run that failed repeats its faults, though not the moments at which they strike;
#                            without it, each run has another one
#
# Tables go to target/soak.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
minutes=${1:?usage: soak.sh MINUTES [SEED]}
[[ $minutes =~ ^[0-9]+$ ]] || die "MINUTES=$minutes is not a whole number"
export CWASI_SOAK_SECONDS=$((minutes * 60)) CWASI_KILLS=$((minutes + 1))
export CWASI_SOAK_SEED=${2:-$RANDOM}
export CWASI_TEST_SEED=$CWASI_SOAK_SEED
say "faults for $minutes minutes, seed $CWASI_SOAK_SEED"
rm -rf "$TARGET_DIR/soak"
code=0
RUST_TEST_THREADS=1 "$CHECKOUT/scripts/test.sh" e2e -- soak:: interrupted:: || code=$?
cat "$TARGET_DIR"/soak/*.txt
exit "$code"
