#!/usr/bin/env bash
# Miri over the guest SDK's tests: its unsafe code turns what the host writes into slices.
#
# Miri cannot map memory or pass descriptors, so the host's side is tested with the real kernel instead.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/tools.sh"
say "miri: guest-sdk/rust"
cd "$CHECKOUT/guest-sdk/rust"
# Property tests look for their own file.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
# This toolchain has no Clippy, which a shell that lints puts before the compiler.
env --unset=RUSTC_WORKSPACE_WRAPPER cargo "+$NIGHTLY" miri test --workspace --target-dir "$TARGET_DIR/miri"
