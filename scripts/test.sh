#!/usr/bin/env bash
# Every test: unit, property and conformance; the guests' own; end to end on private containerds.
#
# The end-to-end tests start a containerd each and take it down when they end, however they end.
# `test.sh NAME…` runs only the named test targets of the runtime, for example `test.sh e2e_run`; `test.sh --build` runs
# none. `test.sh --static` runs a few end-to-end tests with static programs (setup.sh --static), after a build.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
cd "$CHECKOUT"

# The command and wasmtime's compiler are those of the other tests: second ones take twice as long to build as the
# runtime.
if [ "${1-}" = --static ]; then
    source "$CHECKOUT/scripts/static.sh"
    "$CHECKOUT/scripts/build.sh" --static --runtime-only
    say "testing static programs"
    export CWASI_TEST_PROGRAMS=$STATIC_PROGRAMS/debug
    cargo test --workspace --test e2e_calls
    cargo test --workspace --test e2e_components -- a_component_runs_as_any_user
    cargo test --workspace --test e2e_exec -- restrictions_of_the_container
    exit
fi

"$CHECKOUT/scripts/guests.sh"
"$CHECKOUT/scripts/functions.sh"
say "building the runtime, the test bed and the tests"
CWASI_BUILD_WITH_TESTS=yes "$CHECKOUT/scripts/build.sh"
[ "${1-}" != --build ] || exit 0
if [ $# -gt 0 ]; then
    exec cargo test --workspace "${@/#/--test=}"
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
say "the fuzz targets' inputs"
"$CHECKOUT/scripts/fuzz.sh" replay
say "testing workers, their sandbox and the modes with the other engine"
CWASI_TEST_ENGINE=wasmedge cargo test --workspace --test worker_life --test sandbox --test conformance
