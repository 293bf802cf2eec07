#!/usr/bin/env bash
# Format and clippy, warnings denied, in every workspace.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
cd "$CHECKOUT"
say "format and clippy: the runtime"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
for folder in $(workspaces); do
    say "format and clippy: $folder"
    (
        cd "$folder"
        cargo fmt --all --check
        if guests_only "$folder"; then
            cargo clippy --workspace --target "$GUEST_TARGET" --target-dir "$TARGET_DIR/guests" -- -D warnings
        else
            cargo clippy --workspace --all-targets --target-dir "$TARGET_DIR/host" -- -D warnings
        fi
    )
done
