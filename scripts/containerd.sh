# containerd 2.x for the tests, built from its Go modules: Debian's unstable has it, and drops each version for the
# next. Sourced by setup.sh.

CONTAINERD_2=$STATE_DIR/containerd-2
CONTAINERD_2_MODULE=$CHECKOUT/scripts/containerd-2
CONTAINERD_2_VERSION=$(sed -nE 's#^require github.com/containerd/containerd/v2 v(.*)#\1#p' "$CONTAINERD_2_MODULE/go.mod")

containerd_2_is_there() { [ "$(cat "$CONTAINERD_2/VERSION" 2>/dev/null)" = "$(go_digest "$CONTAINERD_2_MODULE")" ]; }

install_containerd_2() {
    local folder=$CONTAINERD_2.go source=github.com/containerd/containerd/v2 started=$SECONDS
    say "building containerd $CONTAINERD_2_VERSION from its Go modules: about a minute"
    rm -rf "$CONTAINERD_2"
    mkdir -p "$CONTAINERD_2/usr/bin"
    (
        go_environment "$folder"
        cd "$CONTAINERD_2_MODULE" && go build -trimpath -buildvcs=false \
            -ldflags "-s -w -X $source/version.Version=$CONTAINERD_2_VERSION" \
            -o "$CONTAINERD_2/usr/bin/" "$source"/cmd/{containerd,containerd-shim-runc-v2,ctr} \
            2> >(grep -v '^go: downloading' >&2)
    ) || die "containerd $CONTAINERD_2_VERSION is not built: Go needs the proxy of modules that GOPROXY names"
    remove_go_folder "$folder"
    go_digest "$CONTAINERD_2_MODULE" >"$CONTAINERD_2/VERSION"
    say "containerd $CONTAINERD_2_VERSION is built: $((SECONDS - started)) s"
}
