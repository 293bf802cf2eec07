#!/usr/bin/env bash
# Writes the image that deploy/kubernetes/node installs from: node-image.sh OUT.tar [REFERENCE]
#
# It has the static programs of `build.sh --static` (PROFILE=release: the optimized ones), without symbols; busybox; the
# scripts of deploy/kubernetes/node; and the certificates that this machine trusts. ARM64=yes makes it an index with the
# image for 64-bit ARM as well. WASMEDGE=yes adds the program of WasmEdge, of target/debug or target/release, with the
# engine and the libraries that it loads, but glibc, which has to be the node's; for this machine's architecture only.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"
source "$CHECKOUT/scripts/arm64-packages.sh"

out=$1 reference=${2:-localhost/cwasi-node:latest}
profile=${PROFILE:-debug}
# Parts of glibc: they fit the node's dynamic linker only.
GLIBC='^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so'

# The program of WasmEdge into the folder $1, and the arguments for its libraries.
add_wasmedge() {
    "$CHECKOUT/scripts/install.sh" "$TARGET_DIR/$profile" "$1" cwasi-sandbox-wasmedge
    while read -r name path; do
        [[ $name =~ $GLIBC ]] || arguments+=(--file "$path:/cwasi/lib/$name")
    done < <(ldd "$TARGET_DIR/$profile/cwasi-sandbox-wasmedge" | sed -nE 's/^\s*(\S+) => (\S+) .*/\1 \2/p')
}

# write_image OUT TARGET BUSYBOX: one architecture's
write_image() {
    local archive=$1 target=$2 busybox=$3 folder=$folder/$2 name path program applet script
    local arguments=(--file "$busybox:/bin/busybox" --file "$CERTIFICATES:$CERTIFICATES")
    for script in node containerd; do
        arguments+=(--file "$CHECKOUT/deploy/kubernetes/node/$script.sh:/cwasi/$script.sh")
    done
    "$CHECKOUT/scripts/install.sh" "$TARGET_DIR/$target/$profile" "$folder" \
        containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi-compiler cwasi
    for applet in $("$STATE_DIR/busybox/bin/busybox" --list); do
        [ "$applet" = busybox ] || arguments+=(--link "busybox:/bin/$applet")
    done
    if [ "$target" = "$STATIC_TARGET" ]; then
        [ -z "${WASMEDGE:-}" ] || add_wasmedge "$folder"
    else
        arguments+=(--architecture arm64)
    fi
    for program in "$folder"/*; do
        arguments+=(--file "$program:/cwasi/bin/$(basename "$program")")
    done
    "$TARGET_DIR/debug/cwasi-testbed" image "$archive" "$reference" "${arguments[@]}" \
        --entrypoint /bin/sh --entrypoint /cwasi/node.sh
}

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${ARM64:-}" ]; then
    write_image "$out" "$STATIC_TARGET" "$STATE_DIR/busybox/bin/busybox"
else
    write_image "$folder/own.tar" "$STATIC_TARGET" "$STATE_DIR/busybox/bin/busybox"
    OBJCOPY=aarch64-linux-gnu-objcopy write_image "$folder/arm64.tar" "$STATIC_ARM64" "$ARM64_ROOT/usr/bin/busybox"
    "$TARGET_DIR/debug/cwasi-testbed" image-index "$out" "$reference" "$folder/own.tar" "$folder/arm64.tar"
fi
