#!/usr/bin/env bash
# `.ci/run`, as CI runs it: in a clean clone of HEAD, below .cwasi/gate-clone. Its target folder is kept between runs as
# .cwasi/gate-target, so that a later one compiles no dependency again.
#
# Appends a row to .cwasi/gate: date, revision, hash of its tree, `passed` or `failed`, seconds of the clock and of a
# processor. So `git rev-parse HEAD^{tree}` tells whether the tree in front of you has passed. Output: .cwasi/gate.log.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
sessions_end_here
CLONE=$STATE_DIR/gate-clone
RESULTS=$STATE_DIR/gate
KEPT=$STATE_DIR/gate-target
LOG=$STATE_DIR/gate.log

# Tests look for programs and guests in their checkout's own target folder.
keep_target() { [ ! -d "$CLONE/target" ] || mv "$CLONE/target" "$KEPT"; }

[ -z "$(git status --porcelain)" ] || say "not committed, so not tested: $(git status --porcelain | wc -l) files"
mkdir -p "$STATE_DIR"
# Of a run that was interrupted or failed.
keep_target
rm -rf "$CLONE"
git clone --quiet . "$CLONE"
[ ! -d "$KEPT" ] || mv "$KEPT" "$CLONE/target"
revision=$(git rev-parse --short HEAD) tree=$(git -C "$CLONE" rev-parse 'HEAD^{tree}')
say "the gate of $revision, in $CLONE: output is also in $LOG"
result=passed started=$SECONDS
# The wrapper of a shell that lints is not for the tools that set-up builds.
CI=true in_session env --unset=RUSTC_WORKSPACE_WRAPPER bash "$CLONE/.ci/run" > >(tee "$LOG") 2>&1 || result=failed
seconds=$((SECONDS - started))
# Processor time of the children, such as 12m3.456s 1m2.345s.
times >"$STATE_DIR/gate.times"
processor=$(tail -n 1 "$STATE_DIR/gate.times" | awk '{
    for (i = 1; i <= 2; i++) { split($i, part, /[ms]/); n += 60 * part[1] + part[2] }
    printf "%.0f", n }')
rm "$STATE_DIR/gate.times"
printf '%s\t%s\t%s\t%s\t%s s\t%s s of a processor\n' "$(date --utc +%FT%RZ)" "$revision" "$tree" "$result" \
    "$seconds" "$processor" >>"$RESULTS"
tail -n 1 "$RESULTS"
[ "$result" = passed ] || die "the gate failed: $LOG; its checkout is $CLONE"
keep_target
rm -rf "$CLONE"
