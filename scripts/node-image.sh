#!/usr/bin/env bash
# Writes the image that deploy/kubernetes/node installs from: node-image.sh OUT.tar [REFERENCE]
#
# It has the static programs of `build.sh --static` (PROFILE=release: the optimized ones), without symbols; busybox; and
# deploy/kubernetes/node/node.sh. WASMEDGE=yes adds the program of WasmEdge, of target/debug or target/release, with the
# engine and the libraries that it loads, but glibc, which has to be the node's.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"

out=$1 reference=${2:-localhost/cwasi-node:latest}
profile=${PROFILE:-debug}
busybox=$STATE_DIR/busybox/bin/busybox
# Parts of glibc: they fit the node's dynamic linker only.
GLIBC='^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$CHECKOUT/scripts/install.sh" "$STATIC_PROGRAMS/$profile" "$folder" \
    containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi-compiler cwasi
arguments=(--file "$busybox:/bin/busybox" --file "$CHECKOUT/deploy/kubernetes/node/node.sh:/cwasi/node.sh")
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || arguments+=(--link "busybox:/bin/$applet")
done
if [ -n "${WASMEDGE:-}" ]; then
    "$CHECKOUT/scripts/install.sh" "$TARGET_DIR/$profile" "$folder" cwasi-sandbox-wasmedge
    while read -r name path; do
        [[ $name =~ $GLIBC ]] || arguments+=(--file "$path:/cwasi/lib/$name")
    done < <(ldd "$TARGET_DIR/$profile/cwasi-sandbox-wasmedge" | sed -nE 's/^\s*(\S+) => (\S+) .*/\1 \2/p')
fi
for program in "$folder"/*; do
    arguments+=(--file "$program:/cwasi/bin/$(basename "$program")")
done
"$TARGET_DIR/debug/cwasi-testbed" image "$out" "$reference" "${arguments[@]}" \
    --entrypoint /bin/sh --entrypoint /cwasi/node.sh
