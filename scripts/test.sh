#!/usr/bin/env bash
# Every test: unit, property and conformance; the guests' own; end to end on private containerds.
#
# The end-to-end tests start a containerd each and take it down when they end, however they end.
# `test.sh NAME…` runs only the named test targets of the runtime, for example `test.sh e2e_run`; `test.sh --build` runs
# none.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
cd "$CHECKOUT"

"$CHECKOUT/scripts/guests.sh"
say "building the runtime and the test bed"
"$CHECKOUT/scripts/build.sh" --wasmedge -p cwasi-testbed
[ "${1-}" != --build ] || exit 0
if [ $# -gt 0 ]; then
    exec cargo test "${@/#/--test=}"
fi
for folder in $(workspaces); do
    # Test guests are exercised by the runtime's tests.
    ! guests_only "$folder" || continue
    say "testing $folder"
    (cd "$folder" && cargo test --workspace --target-dir "$(host_target_dir "$folder")")
done
say "testing the runtime"
# All targets, also after a failure: one run names everything that fails.
cargo test --workspace --no-fail-fast
say "testing workers, their sandbox and the modes with the other engine"
CWASI_TEST_ENGINE=wasmedge cargo test --test worker_life --test sandbox --test conformance
