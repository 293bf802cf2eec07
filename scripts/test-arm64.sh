#!/usr/bin/env bash
# Builds the runtime for 64-bit ARM, and runs tests/vm/smoke.sh with it in an emulated machine: Debian 13's kernel,
# containerd and engine for that architecture. Everything else lies in target/ and .cwasi/arm64.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/arm64-packages.sh"
cd "$CHECKOUT"
# A QEMU that was unpacked before it had this machine.
[ -x "$STATE_DIR/qemu/usr/bin/qemu-system-aarch64" ] || rm -f "$STATE_DIR/qemu/VERSION"
unpack_arm64
say "building the runtime for $ARM64"
(
    arm64_environment
    "$CHECKOUT/scripts/build.sh" --target "$ARM64" --wasmedge
)
VM_ARCH=aarch64 exec "$CHECKOUT/scripts/vm.sh" smoke
