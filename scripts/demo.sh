#!/usr/bin/env bash
# The main job: a video goes through four functions, fanned out and in, on a private containerd. The results must equal
# those of the same functions called one after the other in one process.
#
#   demo.sh            a traffic scene is generated, and the result scored against its ground truth
#   demo.sh VIDEO      your own video (H.264 in MP4 or MJPEG in AVI; others are converted first)
#   demo.sh --check    the generated scene, with thresholds on the accuracy (CI)
#   demo.sh --two-nodes
#                      first on two nodes, frames on the edge and dataset and paths in the cloud, then on one;
#                      the results must be equal
#   demo.sh --prepare  builds, makes images, scene and the results that it has to have, and starts nothing (kubernetes.sh)
#
# All its files are below .cwasi/demo. The containerd ends with the script, also after an error.
set -euo pipefail
source "$(dirname "$0")/lib.sh"

WORKFLOW=$CHECKOUT/workflows/vehicle-paths
FUNCTIONS=(extract-frames process-frames prepare-dataset reconstruct-paths fn-utils)
DEMO_DIR=$STATE_DIR/demo
BIN_DIR=$TARGET_DIR/${PROFILE:-debug}
TOOLS_DIR=$TARGET_DIR/debug
SCENE_SECONDS=${SCENE_SECONDS:-16}
# A seed that the detector was not tuned on.
SCENE_SEED=${SEED:-35}
THRESHOLDS=()
two_nodes=
prepare=

video=
case ${1:-} in
--check)
    # The workflow's README has these thresholds, and the results of other seeds.
    THRESHOLDS=(--min-found 0.8 --max-mean-error 1.5 --max-invented 1)
    ;;
--two-nodes) two_nodes=yes ;;
--prepare) prepare=yes ;;
?*) video=$(realpath -e -- "$1" 2>/dev/null) || die "there is no video $1" ;;
esac

build() {
    say "building the runtime"
    # shellcheck disable=SC2046 # one flag or none
    "$CHECKOUT/scripts/build.sh" $([ "${PROFILE:-debug}" != release ] || echo --release) -p cwasi-testbed
    say "building the functions for wasm32-wasip1"
    (cd "$WORKFLOW" && cargo build --release --target wasm32-wasip1 --target-dir "$TARGET_DIR/workflows" \
        "${FUNCTIONS[@]/#/--package=}")
    say "building the workflow's tools"
    # In the runtime's folder, of which they share half of their crates.
    (cd "$WORKFLOW" && cargo build --target-dir "$TARGET_DIR" -p vehicle-paths-tools)
}

# A scene with ground truth, or the user's video, as $DEMO_DIR/in/video.*
make_input() {
    rm -rf "$DEMO_DIR/in" "$DEMO_DIR/out"
    mkdir -p "$DEMO_DIR/in" "$DEMO_DIR/out"
    if [ -z "$video" ]; then
        say "filming a synthetic street with ground truth: $SCENE_SECONDS s, seed $SCENE_SEED"
        "$TOOLS_DIR/traffic-scene" --out "$DEMO_DIR/in" \
            --seed "$SCENE_SEED" --seconds "$SCENE_SECONDS"
        return
    fi
    local kind
    kind=$(kind_of "$video")
    case $kind in
    h264:*mp4*) cp -- "$video" "$DEMO_DIR/in/cam0.mp4" ;;
    mjpeg:avi) cp -- "$video" "$DEMO_DIR/in/cam0.avi" ;;
    # Empty, unknown or cut: the function reports the fault, and processes the decodable part.
    :*) cp -- "$video" "$DEMO_DIR/in/cam0.mp4" ;;
    *)
        say "converting $(basename "$video") ($kind) to H.264 in MP4"
        ffmpeg -nostdin -loglevel error -i "$video" -an -pix_fmt yuv420p -c:v libx264 "$DEMO_DIR/in/cam0.mp4"
        ;;
    esac
}

# codec:container of a video's first picture stream; without a codec when ffprobe cannot tell.
kind_of() {
    local codec container
    codec=$(ffprobe -v quiet -select_streams v:0 -show_entries stream=codec_name -of csv=p=0 "$1" | head -n 1) || codec=
    container=$(ffprobe -v quiet -show_entries format=format_name -of csv=p=0 "$1" | tr -d '"') || container=
    echo "$codec:$container"
}

show_results() {
    echo
    say "results"
    printf '      picture of the paths   %s\n' "$DEMO_DIR/out/paths.png"
    printf '      paths, speeds          %s\n' "$DEMO_DIR/out/paths.json"
    printf '      anonymized dataset     %s\n' "$DEMO_DIR/out/dataset.tar"
    echo
    say "the dataset is anonymized as far as things move: a person who stands still, and a parked car's plate, stay sharp"
    say "look at it before you give it to others (workflows/vehicle-paths/README.md, \"How it works\")"
    [ -z "$video" ] || return 0
    echo
    say "against the ground truth (seed $SCENE_SEED, not tuned on)"
    "$TOOLS_DIR/score-paths" --truth "$DEMO_DIR/in/truth.json" \
        --results "$DEMO_DIR/out" "${THRESHOLDS[@]}"
}

# The functions on one node (`with`) or two (`two-nodes`, and its flags).
run_with() {
    "$BIN_DIR/cwasi-testbed" "$@" -- "$CHECKOUT/scripts/demo-run.sh" "$DEMO_DIR" \
        "/in/$(basename "$DEMO_DIR"/in/cam0.*)" ${homography:+--homography "$homography"}
}

# Keeps the results under another name.
keep() {
    rm -rf "$DEMO_DIR/out-$1"
    mv "$DEMO_DIR/out" "$DEMO_DIR/out-$1"
    mkdir "$DEMO_DIR/out"
}

compare() { # what is compared, then the folder with the other results
    local file
    echo
    say "$1"
    for file in "$DEMO_DIR"/out/*; do
        cmp "$file" "$2/$(basename "$file")" || die "$(basename "$file") differs"
        printf '      equal: %s, %s bytes\n' "$(basename "$file")" "$(stat -c %s "$file")"
    done
}

# The same functions in one process, one call after the other.
run_in_sequence() {
    rm -rf "$DEMO_DIR/out-sequential"
    # 3: the video was only partly readable.
    "$TOOLS_DIR/run-native" "$DEMO_DIR"/in/cam0.* --out "$DEMO_DIR/out-sequential" \
        ${homography:+--homography "$DEMO_DIR$homography"} >/dev/null || [ -n "$video" ]
}

cd "$CHECKOUT"
build
mkdir -p "$DEMO_DIR"
make_input
homography=
[ ! -e "$DEMO_DIR/in/truth.json" ] || homography=/in/truth.json
if [ -n "$prepare" ]; then
    run_in_sequence
    exit 0
fi
say "starting a private containerd"
if [ -n "$two_nodes" ]; then
    say "on two nodes: extract-frames and process-frames on the edge, the others in the cloud"
    run_with two-nodes
    keep two-nodes
    say "the same on nodes that reach only Redis, not each other"
    run_with two-nodes --apart
    keep apart
    say "on one node"
fi
run_with with
show_results
[ -z "$two_nodes" ] || compare "two nodes against one" "$DEMO_DIR/out-two-nodes"
[ -z "$two_nodes" ] || compare "two nodes over Redis against one" "$DEMO_DIR/out-apart"
run_in_sequence
compare "in parallel against one call after the other" "$DEMO_DIR/out-sequential"
