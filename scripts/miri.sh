#!/usr/bin/env bash
# Miri over the guest SDK's tests: its unsafe code turns what the host writes into slices. A nightly toolchain of its own
# is installed for this by rustup, and used for nothing else.
#
# What maps memory or passes descriptors is beyond Miri: the host's side is tested with the real kernel instead.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

NIGHTLY=nightly-2026-05-20

if ! rustup run "$NIGHTLY" cargo miri --version >/dev/null 2>&1; then
    say "installing $NIGHTLY with miri"
    rustup toolchain install "$NIGHTLY" --profile minimal -c miri -c rust-src
fi
say "miri: guest-sdk/rust"
cd "$CHECKOUT/guest-sdk/rust"
# Property tests look for their own file.
export MIRIFLAGS="${MIRIFLAGS:-} -Zmiri-disable-isolation"
cargo "+$NIGHTLY" miri test --workspace --target-dir "$TARGET_DIR/miri"
