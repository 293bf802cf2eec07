#!/usr/bin/env bash
# Builds the test guests for wasm32-wasip1, components for wasm32-wasip2, where the tests look for them.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
say "building the test guests"
for folder in $(workspaces); do
    guests_only "$folder" || continue
    (cd "$CHECKOUT/$folder" && cargo build --release --target "$(guest_target "$folder")" --target-dir "$TARGET_DIR/guests")
done
