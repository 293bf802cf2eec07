#!/usr/bin/env bash
# Type-checks the runtime, its tests and benches for 64-bit ARM, where numbers of system calls, layouts and C's types differ.
# Nothing is linked or run; the engine's headers are this machine's.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/tools.sh"
cd "$CHECKOUT"
say "cargo check: $ARM64"
cargo check --workspace --all-targets --target "$ARM64"
