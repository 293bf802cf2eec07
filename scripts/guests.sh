#!/usr/bin/env bash
# Builds the test guests for wasm32-wasip1, where the tests look for them.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
say "building the test guests"
cd "$CHECKOUT/tests/guests"
cargo build --release --target wasm32-wasip1 --target-dir "$TARGET_DIR/guests"
