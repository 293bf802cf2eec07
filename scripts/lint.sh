#!/usr/bin/env bash
# Shellcheck; format, clippy and rustdoc, warnings denied, in every workspace. Then the book.
#
# The root workspace is linted for 64-bit ARM, where numbers of system calls, layouts and C's types differ: a build
# type-checks it for this machine. Nothing is linked or run. The engine's headers are this machine's.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
source "$CHECKOUT/scripts/tools.sh"
cd "$CHECKOUT"
say "scripts"
# Those without a suffix say in their first line that a shell runs them.
mapfile -t shell_scripts < <(git ls-files -- '*.sh' ':!third_party'
    git grep -lE '^#! ?/(usr/bin/env (ba)?sh|bin/(ba)?sh)' -- ':!*.sh' ':!*.md' ':!*.rs' ':!third_party')
shellcheck --severity=warning "${shell_scripts[@]}"
say "format and clippy: the runtime, for $ARM64"
cargo fmt --all --check
cargo clippy --workspace --all-targets --target "$ARM64" -- -D warnings
say "documentation: the runtime"
# A broken link is a warning. Includes private items: most of the text is theirs.
export RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links"
# Fuzz targets have no readers of their documentation.
cargo doc --workspace --exclude cwasi-fuzz --no-deps --document-private-items --target "$ARM64"
for folder in $(workspaces); do
    say "format and clippy: $folder"
    (
        cd "$folder"
        cargo fmt --all --check
        if guests_only "$folder"; then
            cargo clippy --workspace --target "$(guest_target "$folder")" --target-dir "$TARGET_DIR/guests" -- -D warnings
        else
            target_dir=$(host_target_dir "$folder")
            cargo clippy --workspace --all-targets --target-dir "$target_dir" -- -D warnings
            cargo doc --workspace --no-deps --document-private-items --target-dir "$target_dir"
        fi
    )
done
say "documentation: the book"
"$CHECKOUT/scripts/book.sh"
