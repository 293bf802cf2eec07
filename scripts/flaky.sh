#!/usr/bin/env bash
# The gate's tests again and again, on a busy machine: two loops at ordinary priority take its processors meanwhile.
# Names every test that failed once, and exits with 1 then.
#
#   flaky.sh N                 scripts/test.sh, N times
#   TEST=NAME… flaky.sh N      only these test targets (TEST="network sandbox"); CASE=part of a test's name for some of
#                              their tests
#
# Appends a row for each run to .cwasi/flaky.tsv: date, revision, target, tests passed and failed, seconds, names of the
# tests that failed. The output of a run that failed stays in target/flaky.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
runs=${1:?usage: [TEST=target] flaky.sh N}
[[ $runs =~ ^[1-9][0-9]*$ ]] || die "N=$runs is not a number of runs"
TABLE=$STATE_DIR/flaky.tsv
LOGS=$TARGET_DIR/flaky
LOOPS=2

# Runs until this script has ended, however that happens.
busy_loop() {
    while kill -0 "$1" 2>/dev/null; do
        for ((turn = 0; turn < 100000; turn++)); do :; done
    done
}

tests() {
    [ -n "${TEST:-}" ] || exec scripts/test.sh
    local targets
    read -ra targets <<<"$TEST"
    # Signals as a terminal's, as in test.sh.
    exec env --default-signal cargo test --workspace --no-fail-fast "${targets[@]/#/--test=}" -- ${CASE:+"$CASE"}
}

# Names of failed tests in a run's output, one a line.
failed_tests() {
    sed --quiet --regexp-extended -e 's/^test (.+) \.\.\. FAILED$/\1/p' -e 's/^---- (.+) stdout ----$/\1/p' "$1" | sort --unique
}

# sum WORD LOG: the sum of the numbers before a word in the results of all targets.
sum() { sed --quiet --regexp-extended "s/^test result: .* ([0-9]+) $1.*/\1/p" "$2" | awk '{ sum += $1 } END { print sum + 0 }'; }

revision=$(git rev-parse --short HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || revision+=+
target=${TEST:-all}${CASE:+ ($CASE)}
mkdir -p "$STATE_DIR" "$LOGS"
[ -e "$TABLE" ] || printf 'date\trevision\ttarget\tpassed\tfailed\tseconds\tnames\n' >"$TABLE"

loop_pids=()
end() {
    end_session
    [ ${#loop_pids[@]} = 0 ] || kill "${loop_pids[@]}" 2>/dev/null || true
}
sessions_end_here
trap end EXIT

say "building"
in_session scripts/test.sh --build
for ((loop = 0; loop < LOOPS; loop++)); do
    busy_loop $$ &
    loop_pids+=($!)
done

export -f tests
export TEST=${TEST:-} CASE=${CASE:-}
all_failed=()
for ((run = 1; run <= runs; run++)); do
    log=$LOGS/$revision-$(date +%s)-$run.log
    begin=$SECONDS code=0
    in_session bash -c tests >"$log" 2>&1 || code=$?
    mapfile -t failed < <(failed_tests "$log")
    # A target that could not be built or was killed names no test.
    [ "$code" = 0 ] || [ ${#failed[@]} != 0 ] || failed=("exit code $code")
    names=$(IFS=,; printf '%s' "${failed[*]}")
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$(date --utc +%FT%TZ)" "$revision" "$target" "$(sum passed "$log")" \
        "${#failed[@]}" "$((SECONDS - begin))" "$names" >>"$TABLE"
    say "run $run of $runs: $(sum passed "$log") passed, ${#failed[@]} failed ${names:+($names; $log)}"
    [ ${#failed[@]} != 0 ] || rm "$log"
    all_failed+=("${failed[@]}")
done
[ ${#all_failed[@]} = 0 ] && exit
printf '%s\n' "${all_failed[@]}" | sort | uniq --count | sort --reverse --numeric-sort
exit 1
