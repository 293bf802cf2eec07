#!/usr/bin/env bash
# The part of the demo that runs beside its containerd (`cwasi-testbed with` starts both), or beside two
# (`cwasi-testbed two-nodes`): the cloud node then makes dataset and paths.
#
#   demo-run.sh DIR VIDEO [ARGUMENT…]   arguments of extract-frames; DIR holds in/, out/ and the images
#
# Writes the metrics of the functions' calls to DIR/edges-*.json, one file for each node.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=$1
shift
RUNTIME=io.containerd.cwasi.v1
SECONDARIES=(process-frames prepare-dataset reconstruct-paths)
# Calls of a function spread over its containers; a number tells them apart.
CONTAINERS=(process-frames process-frames-2 prepare-dataset reconstruct-paths)
CLOUD_FUNCTIONS=" ${CWASI_CLOUD_BED:+prepare-dataset fn-utils reconstruct-paths }"
export CONTAINERD_NAMESPACE=demo

# Name of a container's function.
function_of() { echo "${1%-[0-9]}"; }

# Runs a command on the node of a container: `CONTAINERD_ADDRESS` and `BED` are that node's.
on_node_of() {
    local name
    name=$(function_of "$1")
    shift
    if [[ $CLOUD_FUNCTIONS == *" $name "* ]]; then
        CONTAINERD_ADDRESS=$CWASI_CLOUD_ADDRESS BED=$CWASI_CLOUD_BED "$@"
    else
        BED=$CWASI_BED "$@"
    fi
}

run() { # a container's id, then flags and arguments of ctr run
    on_node_of "$1" ctr_run "$@"
}

ctr_run() {
    local name=$1
    shift
    ctr run --runtime "$RUNTIME" --fifo-dir "$BED/fifo" \
        --annotation cwasi.workflow=vehicle-paths --annotation "cwasi.function=$(function_of "$name")" "$@"
}

for name in "${SECONDARIES[@]}" extract-frames fn-utils; do
    on_node_of "$name" ctr images import "$DIR/$name.tar" >/dev/null
done
for name in "${CONTAINERS[@]}"; do
    say "starting $name (secondary)$([ -d "$STATE_DIR/aot" ] || echo ': the first start compiles it')"
    more=()
    # prepare-dataset has fan-in, and embeds the library fn-utils.
    [ "$name" != prepare-dataset ] ||
        more=(--annotation cwasi.fan-in=caller --annotation cwasi.embed=fn_utils=localhost/fn-utils:demo)
    run "$name" --detach --annotation cwasi.role=secondary "${more[@]}" "localhost/$(function_of "$name"):demo" "$name"
done
ctr task ls
[ -z "${CWASI_CLOUD_BED:-}" ] || on_node_of reconstruct-paths ctr task ls
say "running extract-frames (primary)"
started=$SECONDS
code=0
run extract-frames --rm \
    --mount "type=bind,src=$DIR/in,dst=/in,options=rbind:ro" \
    --mount "type=bind,src=$DIR/out,dst=/out,options=rbind:rw" \
    localhost/extract-frames:demo extract-frames /extract-frames.wasm "$@" || code=$?
say "extract-frames ended with $code after $((SECONDS - started)) s"
# 3: the video was damaged, and the readable part was processed.
[ "$code" = 0 ] || [ "$code" = 3 ] || exit "$code"
# When a function ends, its shim writes the metrics of its calls.
stopped() { on_node_of "$1" ctr task ls | grep -q "^$1 .*STOPPED"; }
for name in "${CONTAINERS[@]}"; do
    on_node_of "$name" ctr task kill --signal TERM "$name"
    for _ in {1..100}; do ! stopped "$name" || break; sleep 0.1; done
done
rm -f "$DIR"/edges-*.json
for bed in "$CWASI_BED" ${CWASI_CLOUD_BED:+"$CWASI_CLOUD_BED"}; do
    for edges in "$bed"/cwasi/g/*/edges.json; do
        [ ! -e "$edges" ] || cp "$edges" "$DIR/edges-$(basename "$bed").json"
    done
done
