#!/usr/bin/env bash
# Two nodes on this machine, edge and cloud: a containerd each in a network of its own, one Redis that both know.
#
#   two-nodes.sh COMMAND…   runs it beside them; without a command, a shell. Everything is gone when it ends.
#
# `ctr` is the edge's; the cloud's is `ctr --address "$CWASI_CLOUD_ADDRESS"`. Container ids must differ between the
# nodes, because they share the machine's cgroups. FIFOs go to $CWASI_BED/fifo and $CWASI_CLOUD_BED/fifo:
#
#   ctr images import guests.tar; ctr --address "$CWASI_CLOUD_ADDRESS" images import guests.tar
#   ctr --address "$CWASI_CLOUD_ADDRESS" run --detach --runtime io.containerd.cwasi.v1 --fifo-dir "$CWASI_CLOUD_BED/fifo" \
#       --annotation cwasi.role=secondary localhost/guests:test server /server.wasm
#   ctr run --rm --runtime io.containerd.cwasi.v1 --fifo-dir "$CWASI_BED/fifo" \
#       localhost/guests:test hello /probe.wasm call server hello
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"
"$CHECKOUT/scripts/build.sh" -p cwasi-testbed
[ $# -gt 0 ] || set -- "${SHELL:-bash}"
exec "$TARGET_DIR/debug/cwasi-testbed" two-nodes -- "$@"
