# Kubernetes' own programs for the test cluster, built from its Go modules. Sourced by scripts/kubernetes.sh.

KUBERNETES_VERSION=$(sed -n 's/^require k8s.io\/kubernetes //p' "$KUBERNETES_DIR/programs/go.mod")
PROGRAM_NAMES=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)

# Version and digest of what they are built from: a change builds them anew.
programs_digest() { cat "$KUBERNETES_DIR"/programs/go.{mod,sum} | sha256sum | cut -c 1-16; }

build_programs() {
    local go=$STATE_DIR/go/usr/lib/go-1.24/bin/go folder=$STATE_DIR/kubernetes/go package started=$SECONDS
    local variables=k8s.io/component-base/version packages=()
    [ "$(cat "$PROGRAMS/VERSION" 2>/dev/null)" != "$(programs_digest)" ] || return 0
    say "building Kubernetes $KUBERNETES_VERSION from its Go modules: about 10 minutes"
    rm -rf "$PROGRAMS"
    mkdir -p "$PROGRAMS"
    for package in "${PROGRAM_NAMES[@]}"; do
        packages+=("k8s.io/kubernetes/cmd/$package")
    done
    # kubectl and the servers say this version; a version of zeros is refused by clients.
    (
        cd "$KUBERNETES_DIR/programs"
        export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly GOWORK=off
        export GOROOT=${go%/bin/go} GOCACHE=$folder/cache GOMODCACHE=$folder/modules
        "$go" build -trimpath -o "$PROGRAMS/" -ldflags "-s -w -X $variables.gitVersion=$KUBERNETES_VERSION
            -X $variables.gitMajor=1 -X $variables.gitMinor=34 -X $variables.gitTreeState=clean" "${packages[@]}"
        # The container that holds a pod's namespaces, in C.
        cc -static -O2 -DVERSION=test -o "$PROGRAMS/pause" \
            "$("$go" list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c"
    )
    # Sources and intermediate results: 4 GB that nothing needs any more.
    chmod -R u+w "$folder"
    rm -rf "$folder"
    programs_digest >"$PROGRAMS/VERSION"
    say "Kubernetes is built: $((SECONDS - started)) s"
}
