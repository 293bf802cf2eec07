#!/usr/bin/env bash
# Writes the image that deploy/kubernetes/node installs from: node-image.sh OUT.tar [REFERENCE]
#
# It has the runtime's programs (PROFILE=release: of target/release), without symbols; the engine and the libraries that
# it loads, but glibc, which has to be the node's; busybox; and deploy/kubernetes/node/node.sh. The command `cwasi`, which
# runs in the image (deploy/kubernetes/metrics.yaml), has its libraries in their usual places.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

out=$1 reference=${2:-localhost/cwasi-node:latest}
programs=$TARGET_DIR/${PROFILE:-debug}
busybox=$STATE_DIR/busybox/bin/busybox
# Parts of glibc: they fit the node's dynamic linker only.
GLIBC='^(libc|libm|libdl|libpthread|librt|ld-linux.*)\.so'

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$CHECKOUT/scripts/install.sh" "$programs" "$folder" containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi
arguments=(--file "$busybox:/bin/busybox" --file "$CHECKOUT/deploy/kubernetes/node/node.sh:/cwasi/node.sh")
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || arguments+=(--link "busybox:/bin/$applet")
done
for program in "$folder"/*; do
    arguments+=(--file "$program:/cwasi/bin/$(basename "$program")")
done
while read -r name path; do
    [[ $name =~ $GLIBC ]] || arguments+=(--file "$path:/cwasi/lib/$name")
done < <(ldd "$programs/cwasi-sandbox" | sed -nE 's/^\s*(\S+) => (\S+) .*/\1 \2/p')
while read -r path; do
    arguments+=(--file "$path:$path")
done < <(ldd "$programs/cwasi" | grep -oE '/[^ ]+')
"$programs/cwasi-testbed" image "$out" "$reference" "${arguments[@]}" \
    --entrypoint /bin/sh --entrypoint /cwasi/node.sh
