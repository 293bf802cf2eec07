# Installs the runtime on the cluster's nodes as docs/kubernetes.md says. Sourced by scripts/kubernetes.sh.

# How a service is restarted here, where no systemd is.
RESTART_CONTAINERD='kill $(cat /run/services/containerd.pid)'

# The manifests with what is this cluster's own.
node_manifests() {
    sed "/name: CONTAINERD_RESTART/{n;s#\"\"#$RESTART_CONTAINERD#}" "$CHECKOUT/deploy/kubernetes/node/node.yaml"
}

node_has_handler() {
    kubectl get node "$1" -o 'jsonpath={.status.runtimeHandlers[*].name}' | grep -qw cwasi
}

install_runtime() {
    local node
    for node in node1 node2; do
        import_images "$node" "${IMAGE_NAMES[@]}"
        kubectl label node "$node" cwasi/runtime=true >/dev/null
    done
    node_manifests | kubectl apply -f - >/dev/null
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/runtimeclass.yaml" >/dev/null
    explain() {
        kubectl -n cwasi-system describe pods >&2
        kubectl -n cwasi-system logs daemonset/cwasi-install >&2
    }
    wait_for "$WAIT_SECONDS" "the runtime is installed" \
        kubectl -n cwasi-system rollout status daemonset/cwasi-install --timeout=1s
    # containerd 1.7 does not tell the kubelet its handlers.
    wait_for "$WAIT_SECONDS" "node1 offers the handler cwasi" node_has_handler node1
    explain() { :; }
}

# configure_nodes TOML: the nodes' configuration, by the Secret; containers that start from now on read it
configure_nodes() {
    kubectl -n cwasi-system create secret generic cwasi-node --from-literal=config.toml="$1" --dry-run=client -o yaml |
        kubectl apply -f - >/dev/null
    kubectl -n cwasi-system rollout restart daemonset/cwasi-install >/dev/null
    wait_for "$WAIT_SECONDS" "the nodes have their configuration" \
        kubectl -n cwasi-system rollout status daemonset/cwasi-install --timeout=1s
}

install_operator() {
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
    wait_for "$WAIT_SECONDS" "the API knows workflows" kubectl get workflows -A
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null
    wait_for "$WAIT_SECONDS" "the operator runs" \
        kubectl -n cwasi-system rollout status deployment/cwasi-operator --timeout=1s
}
