#!/usr/bin/env bash
# Every test: unit, property and conformance; the guests' own; end to end on private containerds.
#
# The end-to-end tests start containerds and take them down when they end, however they end.
# `test.sh NAME… [-- FILTER…]` runs only the named test targets of the runtime, for example `test.sh e2e -- run::`;
# `test.sh --build` runs none. `test.sh --static` runs a few end-to-end tests with static programs (setup.sh --static),
# after a build.
#
# Of the night: `test.sh --wasmedge` runs all tests that run functions, with the second engine.
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
    cargo test --workspace --test e2e -- calls:: a_component_runs_as_any_user restrictions_of_the_container
    exit
fi

"$CHECKOUT/scripts/guests.sh"
"$CHECKOUT/scripts/functions.sh"
say "building the runtime, the test bed and the tests"
CWASI_BUILD_WITH_TESTS=yes "$CHECKOUT/scripts/build.sh"
case ${1-} in
--build)
    for folder in $(workspaces); do
        guests_only "$folder" || (cd "$folder" && cargo build --workspace --all-targets --target-dir "$(host_target_dir "$folder")")
    done
    exit 0
    ;;
--wasmedge)
    export CWASI_TEST_ENGINE=wasmedge
    exec env --default-signal cargo test --workspace --no-fail-fast --test e2e --test worker_life --test sandbox --test conformance
    ;;
esac
if [ $# -gt 0 ]; then
    targets=()
    while [ $# -gt 0 ] && [ "$1" != -- ]; do
        targets+=("--test=$1")
        shift
    done
    exec cargo test --workspace "${targets[@]}" "$@"
fi
# End-to-end tests mostly wait: they run beside the others, three for each processor at a time, and their output follows.
# A failure stops neither, so that one run names everything that fails.
log=$TARGET_DIR/test-e2e.log
say "testing end to end beside what follows: $log"
RUST_TEST_THREADS=$((3 * $(nproc))) setsid cargo test --workspace --test e2e >"$log" 2>&1 &
end_to_end=$!
trap 'kill -- "-$end_to_end" 2>/dev/null || true' EXIT
failed=()
attempt() {
    say "testing $1"
    "${@:2}" || failed+=("$1")
}

test_workspace() { (cd "$1" && cargo test --workspace --target-dir "$(host_target_dir "$1")"); }
for folder in $(workspaces); do
    # Test guests are exercised by the runtime's tests.
    guests_only "$folder" || attempt "$folder" test_workspace "$folder"
done
# Signals as a terminal's: a shell in the background ignores SIGINT, and what it starts inherits that.
attempt "the runtime" env --default-signal cargo test --workspace --no-fail-fast --lib --bin 'cwasi*' --bin 'kubectl*' --test '[!e]*' --test 'e[!2]*'
attempt "the documentation's examples" cargo test --workspace --no-fail-fast --doc
attempt "the fuzz targets' inputs" "$CHECKOUT/scripts/fuzz.sh" replay
attempt "workers, their sandbox and the modes with the other engine" env CWASI_TEST_ENGINE=wasmedge \
    cargo test --workspace --no-fail-fast --test worker_life --test sandbox --test conformance
say "the end-to-end tests, which began first"
tail --lines=+1 --follow --pid="$end_to_end" "$log"
wait "$end_to_end" || failed+=("end to end")
[ ${#failed[@]} = 0 ] || die "these tests failed: ${failed[*]}"
