# Kubernetes' own programs for the test cluster, built from its Go modules. Sourced by scripts/kubernetes.sh and
# scripts/vm.sh.

KUBERNETES_DIR=$CHECKOUT/tests/kubernetes
PROGRAMS=$STATE_DIR/kubernetes/programs
KUBERNETES_VERSION=$(sed -nE 's/^(require )?\s*k8s.io\/kubernetes (v[0-9.]+)$/\2/p' "$KUBERNETES_DIR/programs/go.mod")
[ -n "$KUBERNETES_VERSION" ] || die "$KUBERNETES_DIR/programs/go.mod names no version of k8s.io/kubernetes"
# What a control plane needs; and a cluster: `pause` is the container that holds a pod's namespaces.
CONTROL_PROGRAMS=(kube-apiserver kube-controller-manager kube-scheduler kubectl)
CLUSTER_PROGRAMS=("${CONTROL_PROGRAMS[@]}" kube-proxy kubelet pause)
# Kubernetes' end-to-end tests: the tests, what runs several at a time, and the program in their containers.
E2E_PROGRAMS=(e2e.test ginkgo agnhost)

# Version and digest of what they are built from: a change builds them anew.
programs_digest() { go_digest "$KUBERNETES_DIR/programs"; }

# build_programs NAME…: those that are not in $PROGRAMS yet
build_programs() {
    local folder=$STATE_DIR/kubernetes/go name missing=() started=$SECONDS
    [ "$(cat "$PROGRAMS/VERSION" 2>/dev/null)" = "$(programs_digest)" ] || rm -rf "$PROGRAMS"
    for name in "$@"; do
        [ -e "$PROGRAMS/$name" ] || missing+=("$name")
    done
    [ "${#missing[@]}" -gt 0 ] || return 0
    unpack_for_kubernetes go
    say "building ${missing[*]} of Kubernetes $KUBERNETES_VERSION from its Go modules: up to 10 minutes"
    mkdir -p "$PROGRAMS/new"
    programs_digest >"$PROGRAMS/VERSION"
    # One after the other: each finds the packages that it shares with those before it compiled.
    for name in "${missing[@]}"; do
        (cd "$KUBERNETES_DIR/programs" && build_program "$name" "$folder")
        mv "$PROGRAMS/new/$name" "$PROGRAMS/$name"
    done
    remove_go_folder "$folder"
    rm -rf "$PROGRAMS/new"
    say "Kubernetes is built: $((SECONDS - started)) s"
}

# The definition of HTTPRoutes, from the Gateway API's Go module.
GATEWAY_API=$KUBERNETES_DIR/gateway-api
HTTP_ROUTES=$PROGRAMS/httproutes-$(go_digest "$GATEWAY_API").yaml

fetch_gateway_api() {
    local folder=$STATE_DIR/kubernetes/go-gateway-api
    [ ! -e "$HTTP_ROUTES" ] || return 0
    unpack_for_kubernetes go
    (
        cd "$GATEWAY_API" || exit
        go_environment "$folder"
        go mod download sigs.k8s.io/gateway-api
        install -m 644 "$(go list -m -f '{{.Dir}}' sigs.k8s.io/gateway-api)/config/crd/standard/gateway.networking.k8s.io_httproutes.yaml" \
            "$HTTP_ROUTES"
    )
    remove_go_folder "$folder"
}

build_program() {
    local file name=$1 variables=k8s.io/component-base/version
    go_environment "$2"
    # kubectl and the servers say this version; a version of zeros is refused by clients.
    local options=(-trimpath -o "$PROGRAMS/new/$name" -ldflags "-s -w -X $variables.gitVersion=$KUBERNETES_VERSION
        -X $variables.gitMajor=1 -X $variables.gitMinor=34 -X $variables.gitTreeState=clean")
    case $name in
    pause)
        go mod download k8s.io/kubernetes
        cc -static -O2 -DVERSION=test -o "$PROGRAMS/new/pause" \
            "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c"
        ;;
    # Kubernetes vets its tests itself: here it would read all their packages once more.
    e2e.test) go test -c -vet=off "${options[@]}" k8s.io/kubernetes/test/e2e ;;
    ginkgo) go build "${options[@]}" github.com/onsi/ginkgo/v2/ginkgo ;;
    agnhost)
        go build "${options[@]}" k8s.io/kubernetes/test/images/agnhost
        for file in crt key; do
            install -m 644 "$(go list -m -f '{{.Dir}}' k8s.io/kubernetes)/test/images/agnhost/porter/localhost.$file" \
                "$PROGRAMS/agnhost.$file"
        done
        ;;
    *) go build "${options[@]}" "k8s.io/kubernetes/cmd/$name" ;;
    esac
}
