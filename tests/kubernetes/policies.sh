# A controller that enforces NetworkPolicies on the nodes, for cases that need one. Sourced by scripts/kubernetes.sh.
#
# The CNI plugins of the test cluster have none. This one is kube-router's, which k3s has, too (policies/policies.go).

POLICIES_DIR=$KUBERNETES_DIR/policies
POLICIES=$PROGRAMS/policies-$(cat "$POLICIES_DIR"/{go.mod,go.sum,policies.go} | sha256sum | cut -c 1-16)
# By its sets the controller's rules name pods.
IPSET_ROW="ipset bookworm 7. ipset libipset13"

build_policies() {
    local folder=$STATE_DIR/kubernetes/go-policies started=$SECONDS
    UNPACKED_FOR_KUBERNETES+=("$IPSET_ROW")
    unpack_for_kubernetes go ipset
    [ ! -e "$POLICIES" ] || return 0
    say "building a controller of NetworkPolicies from kube-router's Go module: up to 6 minutes"
    rm -f "$PROGRAMS"/policies-*
    (
        cd "$POLICIES_DIR" || exit
        go_environment "$folder"
        go build -trimpath -ldflags "-s -w" -o "$POLICIES" .
    )
    remove_go_folder "$folder"
    say "the controller is built: $((SECONDS - started)) s"
}

# start_policies NODE: it enforces what policies there are, from its first pass on
start_policies() {
    local node=$1 libraries
    libraries=/usr/lib/$(uname -m)-linux-gnu
    # As node-files.sh does with iptables.
    on "$node" ln -sf "$STATE_DIR/ipset/usr/sbin/ipset" /usr/sbin/
    on "$node" ln -sf "$STATE_DIR/ipset$libraries"/*.so* "$libraries/"
    (
        enter_cgroups "$node"
        # It becomes a child of the machine's process 1, which takes note of its end.
        # shellcheck disable=SC2016 # the machine's shell expands it
        on "$node" setsid --fork sh -c 'echo $$ >"/run/services/policies.pid"; exec "$@"' policies \
            "$POLICIES" "$node" "$CLUSTER_DIR/kubeconfig" 10.96.0.0/20
    ) </dev/null >>"$CLUSTER_DIR/$node/disk/var/log/policies.log" 2>&1 9>&-
    explain() { show_logs "$node" policies; }
    wait_for 60 "$node enforces policies" on "$node" iptables -S KUBE-NWPLCY-DEFAULT
    explain() { :; }
}

# stop_policies NODE: its rules go with it
stop_policies() {
    local node=$1
    # shellcheck disable=SC2016 # the machine's shell expands it
    on "$node" sh -c 'kill "$(cat /run/services/policies.pid)"'
    policies_ended() { ! on "$1" sh -c 'kill -0 "$(cat /run/services/policies.pid)"' 2>/dev/null; }
    explain() { show_logs "$node" policies; }
    wait_for 30 "the controller of $node ends" policies_ended "$node"
    explain() { :; }
}
