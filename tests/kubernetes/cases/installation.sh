# The DaemonSets take the runtime off a drained node, and put it there again; what each refuses until then.
# On both nodes: node1 has a drop-in, node2 a block in config.toml.
apply - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 3
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {cwasi.role: secondary}}
    spec:
      runtimeClassName: cwasi
      terminationGracePeriodSeconds: 5
      containers: [{name: server, image: "localhost/guests:test", command: [/server.wasm]}]
YAML
wait_rollout deployment/server

no_pods_on() { [ -z "$(k get pods --field-selector "spec.nodeName=$1" -o name)" ]; }
is_clean() {
    ! on "$1" sh -c 'ls /usr/local/bin/*cwasi* /usr/local/lib/cwasi /etc/containerd/conf.d/cwasi.toml' >/dev/null 2>&1 &&
        ! on "$1" grep -q "runtimes.cwasi" /etc/containerd/config.toml
}
is_installed() { on "$1" test -e /usr/local/bin/containerd-shim-cwasi-v1; }
installed_again() {
    [ "$(kubectl -n cwasi-system get daemonset cwasi-install -o 'jsonpath={.status.numberReady}')" = 2 ]
}
label() { kubectl label node "$1" "cwasi/runtime=$2" --overwrite >/dev/null; }

for node in node1 node2; do
    before=$(on "$node" cat /etc/containerd/config.toml)
    kubectl drain "$node" --ignore-daemonsets --delete-emptydir-data --timeout=60s >/dev/null 2>&1 ||
        fail "$node could not be drained"
    wait_for 60 "no function is on $node" no_pods_on "$node"
    # Moved to the other node, all of them.
    wait_rollout deployment/server
    label "$node" remove
    wait_for "$WAIT_SECONDS" "$node has nothing of the runtime" is_clean "$node"
    label "$node" true
    wait_for "$WAIT_SECONDS" "the runtime is on $node again" is_installed "$node"
    wait_for "$WAIT_SECONDS" "both nodes have the runtime" installed_again
    kubectl uncordon "$node" >/dev/null
    equals "containerd's configuration of $node, removed and put there again" "$before" \
        "$(on "$node" cat /etc/containerd/config.toml)"
done

# While a function runs there, nothing is taken away from under it.
busy=$(k get pods -o 'jsonpath={.items[0].spec.nodeName}')
label "$busy" remove
refused() {
    [[ $(kubectl -n cwasi-system logs -l app=cwasi-uninstall --tail=5 2>/dev/null) == *"functions still run on this node"* ]]
}
wait_for "$WAIT_SECONDS" "the runtime stays while functions run" refused
is_installed "$busy" || fail "the runtime was removed from under its functions"
label "$busy" true
wait_for "$WAIT_SECONDS" "both nodes have the runtime" installed_again
wait_rollout deployment/server
delete deployment server
