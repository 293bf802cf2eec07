#!/usr/bin/env bash
# Builds the test guests for wasm32-wasip1, components for wasm32-wasip2, where the tests look for them.
#
#   guests.sh [--papers]
#
#   --papers   those that only the papers' report runs, as well
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
case ${1-} in
--papers) for_papers=yes ;;
'') for_papers='' ;;
*) die "unknown argument $1: use --papers or none" ;;
esac
say "building the test guests"
for folder in $(workspaces); do
    guests_only "$folder" || continue
    [ -n "$for_papers" ] || ! papers_only "$folder" || continue
    (cd "$CHECKOUT/$folder" && cargo build --release --target "$(guest_target "$folder")" --target-dir "$TARGET_DIR/guests")
done
