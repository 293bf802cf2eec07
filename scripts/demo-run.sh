#!/usr/bin/env bash
# The part of the demo that runs beside its containerd (`cwasi-testbed with` starts both).
#
#   demo-run.sh DIR VIDEO [ARGUMENT…]   arguments of extract-frames; DIR holds in/, out/ and the images
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=$1
shift
RUNTIME=io.containerd.cwasi.v1
SECONDARIES=(process-frames prepare-dataset reconstruct-paths)
export CONTAINERD_NAMESPACE=demo

run() { # the name of a function, then flags and arguments of ctr run
    local name=$1
    shift
    ctr run --runtime "$RUNTIME" --fifo-dir "$CWASI_BED/fifo" \
        --annotation cwasi.workflow=vehicle-paths --annotation "cwasi.function=$name" "$@"
}

for name in "${SECONDARIES[@]}" extract-frames; do
    ctr images import "$DIR/$name.tar" >/dev/null
done
for name in "${SECONDARIES[@]}"; do
    say "starting $name (secondary)$([ -d "$STATE_DIR/aot" ] || echo ': the first start compiles it')"
    run "$name" --detach --annotation cwasi.role=secondary "localhost/$name:demo" "$name"
done
ctr task ls
say "running extract-frames (primary)"
started=$SECONDS
code=0
run extract-frames --rm \
    --mount "type=bind,src=$DIR/in,dst=/in,options=rbind:ro" \
    --mount "type=bind,src=$DIR/out,dst=/out,options=rbind:rw" \
    localhost/extract-frames:demo extract-frames /extract-frames.wasm "$@" || code=$?
say "extract-frames ended with $code after $((SECONDS - started)) s"
# 3: what could be read of a damaged video has been worked on.
[ "$code" = 0 ] || [ "$code" = 3 ] || exit "$code"
cp "$CWASI_BED"/cwasi/g/*/edges.json "$DIR/edges.json"
for name in "${SECONDARIES[@]}"; do
    ctr task kill --signal TERM "$name"
done
