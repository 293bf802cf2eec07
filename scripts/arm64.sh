#!/usr/bin/env bash
# Type-checks the programs of a node for 64-bit ARM, where numbers of system calls, layouts and C's types differ.
# Nothing is linked or run. `arm64.sh --all` also checks the operator, tests and benches, with the engine's headers of
# this machine.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/tools.sh"
cd "$CHECKOUT"
what=(-p cwasi -p cwasi-cli --bins)
[ "${1-}" != --all ] || what=(--workspace --exclude cwasi-fuzz --all-targets)
say "cargo check: $ARM64"
cargo check "${what[@]}" --target "$ARM64"
