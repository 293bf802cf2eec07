#!/usr/bin/env bash
# Benches of two revisions in turns, because a shared machine is not as fast at noon as at night.
#
#   bench-ab.sh BASE [PART-OF-A-CASE'S-NAME [RUNS]]
#
# Builds BASE, and the checkout as it is, and runs the cases alternately, base first, RUNS times each (3). Prints for
# each case the medians of both, their ratio, and the quartiles of the ratios of each pair of runs.
#
# target/bench-ab keeps the reports, and what was built of BASE for the next time. The work tree of BASE is removed.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
usage="usage: make bench-ab BASE=revision CASE=part-of-a-name RUNS=3"
revision=${1:?$usage}
base=$(git rev-parse --quiet --verify "$revision^{commit}") || die "$revision is no revision; $usage"
case=${2-}
runs=${3:-3}
FOLDER=$TARGET_DIR/bench-ab
TREE=$FOLDER/tree

remove_tree() {
    # Also one that a killed run left.
    git worktree remove --force "$TREE" 2>/dev/null || rm -rf "$TREE"
}

# build TREE TARGET
build() {
    (
        cd "$1"
        export CARGO_TARGET_DIR=$2
        scripts/guests.sh
        if [ -e scripts/build.sh ]; then
            scripts/build.sh --release --wasmedge
        else
            # Of before the second engine.
            cargo build --release --bins -p cwasi -p cwasi-cli
        fi
        cargo build --release -p cwasi-testbed
        cargo build --release -p cwasi-bench
    )
}

# run NAME NUMBER TARGET
run() {
    say "$1, run $2 of $runs"
    "$3/release/cwasi-bench" quick --case "$case" --out "$FOLDER/$1-$2" ||
        die "a case of $1 could not run; its message is above"
}

trap remove_tree EXIT
trap 'exit 130' INT TERM
remove_tree
rm -rf "$FOLDER"/{base,present}-*
git worktree add --force --detach --quiet "$TREE" "$base"
# What set-up unpacked is the same for both.
ln -s "$STATE_DIR" "$TREE/.cwasi"
say "building $(git log -1 --format='%h %s' "$base")"
build "$TREE" "$FOLDER/target"
say "building the checkout"
build "$CHECKOUT" "$TARGET_DIR"
for number in $(seq "$runs"); do
    run base "$number" "$FOLDER/target"
    run present "$number" "$TARGET_DIR"
done
"$TARGET_DIR/release/cwasi-bench" compare --base "$FOLDER"/base-*/report.json --present "$FOLDER"/present-*/report.json
