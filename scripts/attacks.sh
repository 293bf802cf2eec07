#!/usr/bin/env bash
# The attacker's suite: one test or more for each attack on a path that root acts on, and for each way to take what
# belongs to all (docs/security.md). `make test` runs the same tests among all others.
#
#   attacks.sh         all of them, after a build (make test, or test.sh --build): less than a minute
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

targets=(--lib --test sandbox --test cli --test gateway --test structure --test wasmtime --test component_handlers)
# Parts of the tests' names.
attacks=(
    # A path that somebody else can change: two builders race with a swap of source and link; a swap between the end of
    # a function and its next start; a swap of an executor's folder; links, files, folders and logs of others.
    swapped_for_a_link
    a_mount_that_is_replaced_while_its_function_is_down
    a_folder_that_changes_after_the_start
    a_mount_of_a_named_file_takes_no_other
    a_mount_whose_source_has_a_link
    root_uses_no_folder_of_another_user
    native_code_of_another_users_cache
    a_folder_or_file_of_others_gets_no_log
    folders_stay_what_they_were_at_the_start
    resolved_path::tests::
    owned_path::tests::
    no_raw_path_reaches_a_mount
    no_folder_of_the_host_gets_the_containers_devices
    # An executor's API, and what is left of one that is killed in the middle of an /init.
    an_action_with_a_network_does_not_reach_the_executor
    clients_send_the_token_of_the_file
    an_executor_that_is_killed_in_an_init
    bodies_that_never_arrive
    # One takes what belongs to all: connections, memory, names in metrics, places of a port, fifos.
    unproven::tests::
    strangers_that_say_nothing
    a_workers_memory_has_a_ceiling
    memory_is_limited
    tables_take_from_the_memory
    every_memory_is_limited
    guessed_names_take_no_place_of_functions
    scaler::incoming::tests::
    pod_security::tests::
    without_a_token_other_pages_call_nothing
    strict::tests::
    regular_file::tests::
)
log=$TARGET_DIR/attacks.log
began=$SECONDS
code=0
# Signals as a terminal's, as in test.sh.
env --default-signal cargo test --workspace --no-fail-fast "${targets[@]}" -- "${attacks[@]}" >"$log" 2>&1 || code=$?
grep -E '^test .* \.\.\. ' "$log" || true
[ "$code" = 0 ] || die "an attack worked, or a test failed: $log"
for attack in "${attacks[@]}"; do
    grep -q "^test .*$attack.* ok$" "$log" || die "no test has $attack in its name: correct scripts/attacks.sh"
done
say "$(grep -cE '^test .* ok$' "$log") attacks failed in $((SECONDS - began)) s"
