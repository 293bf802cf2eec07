#!/usr/bin/env bash
# Builds static programs for 64-bit ARM, and runs tests/vm/smoke.sh with them in an emulated machine: Debian 13's kernel
# and containerd for that architecture. Everything else lies in target/ and .cwasi/arm64 (setup.sh --arm64).
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"
# A QEMU that was unpacked before it had this machine.
[ -x "$STATE_DIR/qemu/usr/bin/qemu-system-aarch64" ] || rm -f "$STATE_DIR/qemu/VERSION"
say "building the runtime for $STATIC_ARM64"
"$CHECKOUT/scripts/build.sh" --target "$STATIC_ARM64"
VM_ARCH=aarch64 exec "$CHECKOUT/scripts/vm.sh" smoke
