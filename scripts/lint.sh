#!/usr/bin/env bash
# Format, clippy and rustdoc, warnings denied, in every workspace.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
cd "$CHECKOUT"
say "format and clippy: the runtime"
cargo fmt --all --check
cargo clippy --workspace --all-targets -- -D warnings
say "documentation: the runtime"
# A link that leads nowhere is a warning. Private items, too: most of the text is theirs, and may be linked to.
export RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links"
cargo doc --workspace --no-deps --document-private-items
for folder in $(workspaces); do
    say "format and clippy: $folder"
    (
        cd "$folder"
        cargo fmt --all --check
        if guests_only "$folder"; then
            cargo clippy --workspace --target "$GUEST_TARGET" --target-dir "$TARGET_DIR/guests" -- -D warnings
        else
            cargo clippy --workspace --all-targets --target-dir "$TARGET_DIR/host" -- -D warnings
            cargo doc --workspace --no-deps --document-private-items --target-dir "$TARGET_DIR/host"
        fi
    )
done
