#!/usr/bin/env bash
# The tests that are too long for the gate, tier by tier. A tier that fails does not stop the others.
#
#   nightly.sh               every tier
#   nightly.sh TIER…         these
#   nightly.sh --from TIER   this one and those after it
#   nightly.sh --table       writes the last result of each tier into docs/conformance.md
#
# Each tier appends a row to .cwasi/nightly.tsv: date, revision, tier, tests that passed, seconds, result. Its output is
# target/nightly/TIER.log. A tier's machines and containers end with this script.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
sessions_end_here
RESULTS=$STATE_DIR/nightly.tsv
LOGS=$TARGET_DIR/nightly
PAGE=$CHECKOUT/docs/conformance.md
BEGIN='<!-- make nightly: begin -->' END='<!-- make nightly: end -->'

# The tiers in their order: those that need what the ones before have built come late.
TIERS=(wasmedge seeds soak static demo papers miri fuzz chart collector arm64 vm kubernetes)

about() {
    case $1 in
    wasmedge) echo "end to end, workers and modes with the second engine" ;;
    seeds) echo "property tests and the model checker with other seeds" ;;
    soak) echo "ten minutes of faults, on all containerds" ;;
    static) echo "end to end with static programs" ;;
    demo) echo "the demo on two nodes, then on one" ;;
    papers) echo "each figure of the papers once" ;;
    miri) echo "undefined behaviour in the guest SDK" ;;
    fuzz) echo "each decoder for a minute" ;;
    chart) echo "the chart: what it makes and refuses" ;;
    collector) echo "traces through an OpenTelemetry Collector" ;;
    arm64) echo "static programs in an emulated 64-bit ARM machine" ;;
    vm) echo "virtual machines: cgroup v2, systemd, power cuts" ;;
    kubernetes) echo "two nodes with a kubelet and a control plane" ;;
    esac
}

# Unit tests with seeds that the log names: in the gate they have those of .cargo/config.toml.
other_seeds() {
    local round seed failed=0
    for ((round = 0; round < 10; round++)); do
        seed=$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')
        say "PROPTEST_RNG_SEED=$seed SHUTTLE_RANDOM_SEED=$seed cargo test --workspace --lib"
        PROPTEST_RNG_SEED=$seed SHUTTLE_RANDOM_SEED=$seed cargo test --workspace --no-fail-fast --lib || failed=1
    done
    return "$failed"
}

run() {
    local make=(make --no-print-directory)
    case $1 in
    wasmedge) scripts/setup.sh --languages && scripts/test.sh --wasmedge ;;
    seeds) scripts/setup.sh --tests && other_seeds ;;
    soak) "${make[@]}" soak MINUTES=10 ;;
    static) "${make[@]}" test-static ;;
    demo) "${make[@]}" demo-two-nodes ;;
    papers) scripts/setup.sh --languages && scripts/papers.sh smoke ;;
    miri) "${make[@]}" miri ;;
    fuzz) "${make[@]}" fuzz ;;
    chart) "${make[@]}" test-chart ;;
    collector) "${make[@]}" test-collector ;;
    arm64) "${make[@]}" test-arm64 ;;
    vm) "${make[@]}" test-vm ;;
    kubernetes) "${make[@]}" test-kubernetes ;;
    esac
}

# Tests that passed, by the closing lines of cargo and of the scripts' own cases.
passed() { awk '/^test result: .* passed/ { n += $4 } /: ok, [0-9]+ s$/ { n++ } END { print n + 0 }' "$1"; }

table() {
    [ -e "$RESULTS" ] || die "there is no result yet: run make nightly"
    local tier
    {
        echo "$BEGIN"
        echo "| tier | what | date | revision | passed | seconds | result |"
        echo "|---|---|---|---|---|---|---|"
        for tier in "${TIERS[@]}"; do
            awk -F'\t' -v tier="$tier" -v what="$(about "$tier")" '
                $3 == tier { date = $1; revision = $2; passed = $4 ? $4 : "-"; seconds = $5; result = $6 }
                END {
                    if (!result) { date = revision = passed = seconds = "-"; result = "not run" }
                    printf "| %s | %s | %s | %s | %s | %s | %s |\n", tier, what, date, revision, passed, seconds, result
                }' "$RESULTS"
        done
        echo "$END"
    } >"$LOGS.table"
    awk -v begin="$BEGIN" -v end="$END" -v file="$LOGS.table" '
        $0 == begin { while ((getline line < file) > 0) print line; skip = 1 }
        !skip { print }
        $0 == end { skip = 0 }' "$PAGE" >"$PAGE.new"
    mv "$PAGE.new" "$PAGE"
    rm "$LOGS.table"
    say "written: $PAGE"
}

chosen=("${TIERS[@]}")
case ${1:-} in
--table)
    table
    exit 0
    ;;
--from)
    from=${2:?--from wants a tier}
    [[ " ${TIERS[*]} " == *" $from "* ]] || die "there is no tier $from: ${TIERS[*]}"
    while [ "${chosen[0]}" != "$from" ]; do chosen=("${chosen[@]:1}"); done
    ;;
?*) chosen=("$@") ;;
esac
for tier in "${chosen[@]}"; do
    [[ " ${TIERS[*]} " == *" $tier "* ]] || die "there is no tier $tier: ${TIERS[*]}"
done
export -f run other_seeds say die
mkdir -p "$LOGS" "$STATE_DIR"
failed=()
for tier in "${chosen[@]}"; do
    say "tier $tier: $(about "$tier"); output: $LOGS/$tier.log"
    started=$SECONDS result=ok
    in_session bash -c 'run "$1"' - "$tier" >"$LOGS/$tier.log" 2>&1 || result=failed
    [ "$result" = ok ] || failed+=("$tier")
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(date --utc +%F)" "$(git rev-parse --short HEAD)" "$tier" \
        "$(passed "$LOGS/$tier.log")" "$((SECONDS - started))" "$result" >>"$RESULTS"
    say "tier $tier: $result, $((SECONDS - started)) s"
done
[ ${#failed[@]} = 0 ] || die "these tiers failed: ${failed[*]}"
