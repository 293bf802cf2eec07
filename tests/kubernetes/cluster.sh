# The test cluster: control plane and nodes on machines of their own. Sourced by scripts/kubernetes.sh.
#
# `control` runs etcd and Kubernetes' control plane. node1 has containerd 2.1, whose configuration has drop-ins; node2
# has containerd 1.7, whose configuration has none. Everything authenticates with one token of administrators.

CONTROL_ADDRESS=10.99.0.1
# number of a node, which its addresses have, and its containerd
declare -A NODE_NUMBER=([node1]=11 [node2]=12)
declare -A NODE_CONTAINERD=([node1]=containerd-2 [node2]=containerd-1.7)
# Users with the operator's rights, once `prepare_operators` has given them.
OPERATORS="operator-a operator-b"

kubectl() { in_network control "$PROGRAMS/kubectl" --kubeconfig "$CLUSTER_DIR/kubeconfig" "$@"; }

start_control() {
    start_machine control
    in_network control ip link add bridge type bridge
    in_network control ip address add "$CONTROL_ADDRESS/24" dev bridge
    in_network control ip link set bridge up
    on control sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
    write_credentials
    local etcd=http://127.0.0.1:2379 kubeconfig=$CLUSTER_DIR/kubeconfig
    service control etcd "$STATE_DIR/etcd/usr/bin/etcd" --data-dir /var/lib/etcd/data --unsafe-no-fsync \
        --listen-client-urls "$etcd" --advertise-client-urls "$etcd"
    service control apiserver "$PROGRAMS/kube-apiserver" --etcd-servers "$etcd" --secure-port 6443 \
        --advertise-address "$CONTROL_ADDRESS" --cert-dir /var/lib/etcd/certificates \
        --service-cluster-ip-range 10.96.0.0/20 --service-account-issuer https://kubernetes.default.svc \
        --service-account-key-file "$CLUSTER_DIR/account.pub" --service-account-signing-key-file "$CLUSTER_DIR/account.key" \
        --token-auth-file "$CLUSTER_DIR/tokens.csv" --authorization-mode Node,RBAC --allow-privileged \
        --kubelet-preferred-address-types InternalIP --enable-aggregator-routing \
        --requestheader-client-ca-file "$CLUSTER_DIR/proxy.crt" --requestheader-allowed-names proxy \
        --requestheader-username-headers X-Remote-User --requestheader-group-headers X-Remote-Group \
        --requestheader-extra-headers-prefix X-Remote-Extra- \
        --proxy-client-cert-file "$CLUSTER_DIR/proxy.crt" --proxy-client-key-file "$CLUSTER_DIR/proxy.key" \
        --audit-policy-file "$CLUSTER_DIR/audit.yaml" --audit-log-path /var/log/audit.log
    explain() { show_logs control etcd apiserver; }
    wait_for "$WAIT_SECONDS" "the API server is ready" kubectl get --raw /readyz
    local authentication=(--kubeconfig "$kubeconfig" --authentication-kubeconfig "$kubeconfig"
        --authorization-kubeconfig "$kubeconfig" --leader-elect=false)
    service control controllers "$PROGRAMS/kube-controller-manager" "${authentication[@]}" \
        --service-account-private-key-file "$CLUSTER_DIR/account.key" --cert-dir /var/lib/etcd/controllers \
        --root-ca-file "$CLUSTER_DIR/control/disk/var/lib/etcd/certificates/apiserver.crt" \
        --concurrent-gc-syncs 5 --terminated-pod-gc-threshold 1000 --kube-api-qps 200 --kube-api-burst 400 \
        --horizontal-pod-autoscaler-downscale-stabilization 20s
    service control scheduler "$PROGRAMS/kube-scheduler" "${authentication[@]}" --cert-dir /var/lib/etcd/scheduler
    wait_for "$WAIT_SECONDS" "namespaces have their service account" kubectl get serviceaccount default
    explain() { :; }
}

write_credentials() {
    local token
    token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
    (
        umask 077
        echo "$token,administrator,1,system:masters" >"$CLUSTER_DIR/tokens.csv"
        openssl genrsa -out "$CLUSTER_DIR/account.key" 2048 2>/dev/null
        openssl rsa -in "$CLUSTER_DIR/account.key" -pubout -out "$CLUSTER_DIR/account.pub" 2>/dev/null
        write_kubeconfig "$CLUSTER_DIR/kubeconfig" "$token" default
        # What the API server shows to servers of further APIs, such as KEDA's metrics.
        openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=proxy -addext extendedKeyUsage=clientAuth \
            -keyout "$CLUSTER_DIR/proxy.key" -out "$CLUSTER_DIR/proxy.crt" 2>/dev/null
        # What the operators of operators.sh do, who have users of their own.
        echo "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, users: [${OPERATORS// /, }]}, {level: None}]" >"$CLUSTER_DIR/audit.yaml"
        local name
        for name in $OPERATORS; do
            token=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
            echo "$token,$name,$name" >>"$CLUSTER_DIR/tokens.csv"
            write_kubeconfig "$CLUSTER_DIR/$name.kubeconfig" "$token" cwasi-system
        done
    )
}

# write_kubeconfig FILE TOKEN NAMESPACE
write_kubeconfig() {
    cat >"$1" <<CONFIG
apiVersion: v1
kind: Config
current-context: test
contexts: [{name: test, context: {cluster: test, user: test, namespace: $3}}]
clusters: [{name: test, cluster: {server: "https://$CONTROL_ADDRESS:6443", insecure-skip-tls-verify: true}}]
users: [{name: test, user: {token: "$2"}}]
CONFIG
}

start_node() {
    local name=$1 number=${NODE_NUMBER[$1]}
    start_machine "$name"
    connect_machine "$name" "$number"
    on "$name" "$KUBERNETES_DIR/node-files.sh" "$name" "${NODE_CONTAINERD[$name]}" "10.88.$number.0/24"
    service "$name" containerd containerd
    explain() { show_logs "$name" containerd kubelet; }
    wait_for "$WAIT_SECONDS" "containerd of $name answers" on "$name" ctr version
    on "$name" ctr -n k8s.io images import "$IMAGES/pause.tar" >/dev/null
    service "$name" kubelet "$PROGRAMS/kubelet" --config /etc/kubernetes/kubelet.yaml \
        --kubeconfig "$CLUSTER_DIR/kubeconfig" --hostname-override "$name" --node-ip "10.99.0.$number"
    service "$name" kube-proxy "$PROGRAMS/kube-proxy" --config /etc/kubernetes/kube-proxy.yaml
    wait_for "$WAIT_SECONDS" "$name is ready" kubectl wait --for=condition=Ready "node/$name" --timeout=1s
    explain() { :; }
}

stop_cluster() {
    local name
    for name in node2 node1 control; do
        stop_machine "$name"
    done
    remove_cgroups
    rm -rf "$CLUSTER_DIR"
}
