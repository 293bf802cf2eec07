# Images of the test cluster. Sourced by scripts/kubernetes.sh.
#
# Nodes import them; manifests name them `localhost/…` with imagePullPolicy IfNotPresent, so no registry takes part.

# In the order of their building; each has a function make_NAME.
IMAGE_NAMES=(pause busybox hello guests cwasi-node cwasi-operator)

build_images() {
    local name
    say "building the runtime, its guests and images"
    "$CHECKOUT/scripts/guests.sh"
    # shellcheck disable=SC2046 # one flag or none
    "$CHECKOUT/scripts/build.sh" --static $([ "$PROFILE" != release ] || echo --release) -p cwasi-operator -p kubectl-cwasi
    cargo build --manifest-path "$CHECKOUT/Cargo.toml" -p cwasi-testbed
    mkdir -p "$IMAGES"
    for name in "${IMAGE_NAMES[@]}"; do
        "make_${name//-/_}"
    done
}

# image NAME REFERENCE ARGUMENT…: as `cwasi-testbed image`
image() {
    local name=$1
    shift
    "$TARGET_DIR/debug/cwasi-testbed" image "$IMAGES/$name.tar" "$@"
}

make_pause() { image pause localhost/pause:test --file "$PROGRAMS/pause:/pause" --entrypoint /pause; }

# busybox with its applets by their names, as arguments of `image`
busybox_files() {
    local applet busybox=$STATE_DIR/busybox/bin/busybox
    printf '%s\n' --file "$busybox:/bin/busybox"
    for applet in $("$busybox" --list); do
        [ "$applet" = busybox ] || printf '%s\n' --link "busybox:/bin/$applet"
    done
}

make_busybox() {
    local files
    mapfile -t files < <(busybox_files)
    image busybox localhost/busybox:test "${files[@]}" --cmd sh
}

make_hello() {
    local built=$TARGET_DIR/guests/wasm32-wasip1/release
    image hello localhost/hello:1 --file "$built/greeter.wasm:/greeter.wasm" \
        --file "$built/hello-caller.wasm:/hello-caller.wasm"
}

make_guests() {
    local files=() guest
    for guest in "$TARGET_DIR"/guests/wasm32-wasip1/release/{server,probe,actor,net}.wasm; do
        files+=(--file "$guest:/$(basename "$guest")")
    done
    image guests localhost/guests:test "${files[@]}"
}

# The largest one: only when something of it is new, or it has the programs of another profile or checkout.
make_cwasi_node() {
    local out=$IMAGES/cwasi-node.tar programs=$STATIC_PROGRAMS/$PROFILE parts
    parts=("$programs"/{containerd-shim-cwasi-v1,cwasi-shim,cwasi-sandbox,cwasi-compiler,cwasi}
        "$CHECKOUT"/scripts/{node-image,install}.sh "$CHECKOUT"/deploy/kubernetes/node/*.sh)
    if [ -e "$out" ] && [ "$(cat "$out.programs" 2>/dev/null)" = "$programs" ] &&
        [ -z "$(find "${parts[@]}" -newer "$out")" ]; then
        return
    fi
    rm -f "$out.programs"
    "$CHECKOUT/scripts/node-image.sh" "$out"
    echo "$programs" >"$out.programs"
}

make_cwasi_operator() { "$CHECKOUT/scripts/operator-image.sh" "$IMAGES/cwasi-operator.tar"; }

# A Redis, through which functions of different nodes call each other.
build_redis() {
    local name files redis=$STATE_DIR/redis-7/usr
    mapfile -t files < <(busybox_files)
    while read -r name; do
        files+=(--file "$name:$name")
    done < <(LD_LIBRARY_PATH=$(echo "$redis"/lib/*-linux-gnu) ldd "$redis/bin/redis-server" | grep -oE '/[^ ]+')
    image redis docker.io/library/redis:7 --file "$redis/bin/redis-server:/bin/redis-server" "${files[@]}" \
        --env "LD_LIBRARY_PATH=$(echo "$redis"/lib/*-linux-gnu)"
}

# Functions and input of the video workflow, and the results that it has to have, in .cwasi/demo.
VIDEO_FUNCTIONS=(extract-frames process-frames prepare-dataset reconstruct-paths fn-utils)
VIDEO_NAMES=("${VIDEO_FUNCTIONS[@]}" footage redis)

build_video() {
    local name module files=()
    SCENE_SECONDS=4 "$CHECKOUT/scripts/demo.sh" --prepare
    for name in "${VIDEO_FUNCTIONS[@]}"; do
        # A library's file has _ instead of -.
        module=$TARGET_DIR/workflows/wasm32-wasip1/release/$name.wasm
        [ -e "$module" ] || module=${module%/*}/${name//-/_}.wasm
        image "$name" "localhost/$name:demo" --file "$module:/$name.wasm" --entrypoint "/$name.wasm"
    done
    mapfile -t files < <(busybox_files)
    for name in "$STATE_DIR"/demo/in/*; do
        files+=(--file "$name:/footage/$(basename "$name")")
    done
    image footage localhost/footage:demo "${files[@]}"
}

# The functions of workflows/functions: modules, and native servers.
build_functions() {
    local name built=$TARGET_DIR/functions
    "$CHECKOUT/scripts/functions.sh" --static
    cargo build --manifest-path "$CHECKOUT/Cargo.toml" -p cwasi-bench-kubernetes
    for name in "$built"/*.wasm; do
        name=$(basename "$name" .wasm)
        image "function-$name-ours" "localhost/function-$name:ours" --file "$built/$name.wasm:/m.wasm" --entrypoint /m.wasm
        image "function-$name-native" "localhost/function-$name:native" --file "$built/$name:/server" --entrypoint /server
    done
}

# Stand-ins for the images that Kubernetes' end-to-end tests pull: their own agnhost, built from its source, and busybox.
E2E_IMAGES=(e2e-agnhost e2e-busybox e2e-httpd e2e-nginx e2e-pause)

build_e2e() {
    local files curl=$IMAGES/curl bash=$IMAGES/bash agnhost=$PROGRAMS/agnhost registry=registry.k8s.io/e2e-test-images
    build_programs "${E2E_PROGRAMS[@]}"
    printf '#!/bin/sh\nfor url; do :; done\nexec wget -q -O - "$url"\n' >"$curl"
    printf '#!/bin/sh\nexec sh "$@"\n' >"$bash"
    chmod 755 "$curl" "$bash"
    mapfile -t files < <(busybox_files)
    # The last file is there for its directory.
    files+=(--file "$curl:/bin/curl" --file "$bash:/bin/bash" --file "$curl:/tmp/curl")
    image e2e-busybox "$registry/busybox:1.37.0-1" "${files[@]}" --cmd sh
    files+=(--file "$agnhost:/agnhost" --link agnhost:/agnhost-2 --entrypoint /agnhost
        --file "$agnhost.crt:/localhost.crt" --file "$agnhost.key:/localhost.key")
    image e2e-agnhost "$registry/agnhost:2.56" "${files[@]}" --cmd pause
    image e2e-httpd "$registry/httpd:2.4.38-4" "${files[@]}" --cmd test-webserver
    image e2e-nginx "$registry/nginx:1.14-4" "${files[@]}" --cmd test-webserver
    image e2e-pause registry.k8s.io/pause:3.10.1 --file "$PROGRAMS/pause:/pause" --entrypoint /pause
}

# import_images NODE NAME…
import_images() {
    local node=$1 name
    shift
    for name in "$@"; do
        on "$node" ctr -n k8s.io images import "$IMAGES/$name.tar" >/dev/null
    done
}
