# Helm for the chart's checks, built from its Go modules with Debian's Go. Sourced.

HELM_DIR=$STATE_DIR/helm
HELM=$HELM_DIR/helm
HELM_MODULE=$CHECKOUT/scripts/helm
HELM_VERSION=$(sed -nE 's#^require helm.sh/helm/v3 (v.*)#\1#p' "$HELM_MODULE/go.mod")

# Its own files stay below .cwasi/, too.
export HELM_CACHE_HOME=$HELM_DIR/cache HELM_CONFIG_HOME=$HELM_DIR/config HELM_DATA_HOME=$HELM_DIR/data

build_helm() {
    local folder=$HELM_DIR/go started=$SECONDS version=helm.sh/helm/v3/internal/version
    [ "$(cat "$HELM_DIR/VERSION" 2>/dev/null)" != "$(go_digest "$HELM_MODULE")" ] || return 0
    unpack_for_kubernetes go
    say "building Helm $HELM_VERSION from its Go modules: about 3 minutes"
    mkdir -p "$HELM_DIR"
    (
        go_environment "$folder"
        cd "$HELM_MODULE" && go build -trimpath -buildvcs=false -ldflags "-s -w -X $version.version=$HELM_VERSION" \
            -o "$HELM" helm.sh/helm/v3/cmd/helm 2> >(grep -v '^go: downloading' >&2)
    ) || die "Helm $HELM_VERSION is not built: Go needs the proxy of modules that GOPROXY names"
    remove_go_folder "$folder"
    go_digest "$HELM_MODULE" >"$HELM_DIR/VERSION"
    say "Helm is built: $((SECONDS - started)) s"
}
