#!/usr/bin/env bash
# Writes the image of the operator, the static program and the certificates that this machine trusts:
# operator-image.sh OUT.tar [REFERENCE]
#
# PROFILE=release takes the optimized program. ARM64=yes makes it an index with the image for 64-bit ARM as well.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"

out=$1 reference=${2:-localhost/cwasi-operator:latest}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# write_image OUT TARGET ARGUMENT…: one architecture's
write_image() {
    local archive=$1 target=$2
    shift 2
    "$CHECKOUT/scripts/install.sh" "$TARGET_DIR/$target/${PROFILE:-debug}" "$folder/$target" cwasi-operator
    "$TARGET_DIR/debug/cwasi-testbed" image "$archive" "$reference" "$@" \
        --file "$folder/$target/cwasi-operator:/cwasi-operator" --file "$CERTIFICATES:$CERTIFICATES" --entrypoint /cwasi-operator
}

if [ -z "${ARM64:-}" ]; then
    write_image "$out" "$STATIC_TARGET"
else
    write_image "$folder/own.tar" "$STATIC_TARGET"
    OBJCOPY=aarch64-linux-gnu-objcopy write_image "$folder/arm64.tar" "$STATIC_ARM64" --architecture arm64
    "$TARGET_DIR/debug/cwasi-testbed" image-index "$out" "$reference" "$folder/own.tar" "$folder/arm64.tar"
fi
