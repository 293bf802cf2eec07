#!/usr/bin/env bash
# The part of the demo that runs beside its containerd (`cwasi-testbed with` starts both), or beside two
# (`cwasi-testbed two-nodes`): the cloud node then makes dataset and paths.
#
#   demo-run.sh DIR VIDEO [ARGUMENT…]   arguments of extract-frames; DIR holds in/ and out/
set -euo pipefail
source "$(dirname "$0")/lib.sh"

DIR=$1
shift
changes=(--set "spec.functions.extract-frames.args=[$(IFS=,; echo "$*")]")
for name in extract-frames process_frames prepare_dataset reconstruct_paths fn_utils; do
    changes+=(--set "spec.functions.${name//_/-}.module=$TARGET_DIR/workflows/wasm32-wasip1/release/$name.wasm")
done
if [ -n "${CWASI_CLOUD_ADDRESS:-}" ]; then
    changes+=(--set "spec.nodes.cloud={address: $CWASI_CLOUD_ADDRESS, config: $CWASI_CLOUD_BED/cwasi.toml}"
        --set spec.functions.prepare-dataset.node=cloud --set spec.functions.reconstruct-paths.node=cloud)
fi
say "running the workflow$([ -d "$STATE_DIR/aot" ] || echo ': the first start compiles its functions')"
started=$SECONDS
code=0
cwasi --namespace demo run "$CHECKOUT/workflows/vehicle-paths/workflow.yaml" \
    --input "video=$DIR/in" --input "results=$DIR/out" "${changes[@]}" || code=$?
say "extract-frames ended with $code after $((SECONDS - started)) s"
# 3: the video was damaged, and the readable part was processed.
[ "$code" = 0 ] || [ "$code" = 3 ] || exit "$code"
