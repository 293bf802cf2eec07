#!/usr/bin/env bash
# Checks licences, sources and banned crates of all dependencies of programs and guests (deny.toml).
#
#   deny.sh             licences, bans and sources: needs no network
#   deny.sh advisories  known vulnerabilities: clones the advisory database from GitHub
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
source "$CHECKOUT/scripts/tools.sh"
cd "$CHECKOUT"
if [ $# = 0 ]; then set -- licenses bans sources; fi
for folder in . $(workspaces); do
    say "cargo deny: $folder: $*"
    "$TOOLS_DIR/bin/cargo-deny" --config "$CHECKOUT/deny.toml" --manifest-path "$folder/Cargo.toml" --workspace \
        --all-features --locked check "$@"
done
