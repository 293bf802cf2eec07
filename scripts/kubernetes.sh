#!/usr/bin/env bash
# Tests on a Kubernetes cluster of this checkout: tests/kubernetes/cases/NAME.sh, on two nodes with containerd 2.1 and
# 1.7, on which deploy/kubernetes has installed the static runtime (PROFILE=release: the optimized one).
#
#   kubernetes.sh NAME…     these cases; without a name, all of them
#   kubernetes.sh e2e       Kubernetes' own end-to-end tests of nodes (tests/kubernetes/suites), only by this name
#   kubernetes.sh zero      functions at zero, with KEDA, only by this name: KEDA's build takes 15 minutes
#   kubernetes.sh scale     from one pod to more by KEDA's HPAs, messages and services at zero, only by this name
#   kubernetes.sh placement   the video workflow with placement auto and spread, only by this name
#   kubernetes.sh bench     starts of functions beside native images, only by this name: target/bench-kubernetes
#   kubernetes.sh many      500 Workflows on a control plane without nodes, only by this name: 15 minutes
#   kubernetes.sh --shell   a shell beside the cluster, with `kubectl` and `on NODE COMMAND…`
#
# The first run unpacks etcd, CNI plugins, iptables and Go from Debian below .cwasi/, and builds Kubernetes from its Go
# modules: about 10 minutes of two processors and 4 GB, of which 0.5 GB stay. Later runs begin at once. The cluster
# lives in namespaces of its own (tests/kubernetes/machine.sh) and ends with this script, however that ends. The logs
# of a failed run are kept in .cwasi/kubernetes/logs.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"

PROFILE=${PROFILE:-debug}
IMAGES=$STATE_DIR/kubernetes/images
# What the machines write until they end: the images on both nodes, etcd's data, logs.
SPACE_MB=3000
source "$CHECKOUT/scripts/go.sh"
source "$CHECKOUT/tests/kubernetes/programs.sh"
source "$CHECKOUT/tests/kubernetes/machines.sh"
source "$CHECKOUT/tests/kubernetes/cluster.sh"
source "$CHECKOUT/scripts/static.sh"
source "$CHECKOUT/tests/kubernetes/images.sh"
source "$CHECKOUT/tests/kubernetes/checks.sh"
source "$CHECKOUT/tests/kubernetes/installation.sh"
source "$CHECKOUT/tests/kubernetes/operators.sh"
source "$CHECKOUT/tests/kubernetes/policies.sh"
source "$CHECKOUT/tests/kubernetes/keda.sh"

finish() {
    local code=$?
    trap - EXIT
    # Ends what a case left in the background: calls, log readers.
    jobs -p | xargs -r kill 2>/dev/null || true
    if [ "$code" != 0 ]; then keep_logs; fi
    say "stopping the cluster"
    stop_cluster
    exit "$code"
}

keep_logs() {
    local logs=$STATE_DIR/kubernetes/logs machine
    rm -rf "$logs"
    for machine in control node1 node2; do
        mkdir -p "$logs/$machine"
        cp -r "$CLUSTER_DIR/$machine"/disk/var/log/. "$CLUSTER_DIR/$machine"/{machine.log,*.start} "$logs/$machine/" 2>/dev/null || true
    done
    kubectl describe nodes >"$logs/nodes" 2>/dev/null || true
    show_pressure
    kubectl get events -A --sort-by .lastTimestamp >"$logs/events" 2>/dev/null || true
    kubectl get pods -A -o wide 2>/dev/null | tee "$logs/pods" >&2 || true
    tail -n 15 "$logs/events" >&2 || true
    say "logs are in $logs"
}

# Names the nodes that take no pods, or evict them, for want of something.
show_pressure() {
    local condition='{range .status.conditions[?(@.status=="True")]}{.type}{" "}{end}' node types size free inodes
    read -r size free inodes < <(df -h --output=size,avail,iavail "$STATE_DIR" | tail -n 1)
    while read -r node types; do
        [[ $types != *Pressure* ]] || say "$node has ${types}and a disk of $size with $free and $inodes inodes free"
    done < <(kubectl get nodes -o "jsonpath={range .items[*]}{.metadata.name} $condition{\"\n\"}{end}" 2>/dev/null || true)
}

# The machines' disks are on that of the checkout, and kubelets evict pods below 200 MiB.
need_space() {
    local free
    free=$(df --output=avail --block-size=1M "$STATE_DIR" | tail -n 1)
    [ "$free" -ge "$SPACE_MB" ] || die "the test cluster needs $SPACE_MB MiB on the disk of $STATE_DIR; $free are free"
}

# case_file NAME: of a case, or of a suite that runs only by its name
case_file() { ls "$KUBERNETES_DIR"/{cases,suites}/"$1.sh" 2>/dev/null; }

run_case() {
    local name=$1 started=$SECONDS
    say "case $name"
    # In a shell of its own, so that nothing of it stays; its namespace goes without waiting for that.
    ( NAMESPACE=$name; kubectl create namespace "$name" >/dev/null; source "$(case_file "$name")" )
    say "case $name: ok, $((SECONDS - started)) s"
    remove_namespaces "$name"
}

# The nodes, and what runs on them.
start_nodes() {
    local node
    for node in node1 node2; do
        say "starting $node (${NODE_CONTAINERD[$node]})"
        start_node "$node"
    done
    say "installing the runtime with deploy/kubernetes"
    install_runtime
}

# Cases of the operator that need no node: they start its program beside the API server, on this machine's libraries.
WITHOUT_NODES=(many troubles)

need_nodes() {
    local name
    for name in "${cases[@]}"; do
        [[ " ${WITHOUT_NODES[*]} " == *" $name "* ]] || return 0
    done
    return 1
}

[ "$(id -u)" = 0 ] || die "machines of their own need root"
[ -d /sys/fs/cgroup/memory ] || die "the test cluster runs with cgroup v1; make test-vm tests cgroup v2"
shell=
if [ "${1:-}" = --shell ]; then
    shell=yes
    shift
fi
for name in "$@"; do
    [ -n "$(case_file "$name")" ] || die "there is no tests/kubernetes/cases/$name.sh"
done
[ $# -gt 0 ] || mapfile -t cases < <(basename -s .sh -a "$KUBERNETES_DIR"/cases/*.sh)
[ $# = 0 ] || cases=("$@")

# One run at a time: each ends what it finds of an earlier one. Machines do not inherit the lock.
mkdir -p "$STATE_DIR/kubernetes"
exec 9>"$STATE_DIR/kubernetes/lock"
flock -n 9 || die "another run of this checkout has the cluster"
unpack_for_kubernetes
if need_nodes; then
    build_programs "${CLUSTER_PROGRAMS[@]}"
    build_images
else
    build_programs "${CONTROL_PROGRAMS[@]}"
    OPERATOR=$TARGET_DIR/$PROFILE/cwasi-operator
    # shellcheck disable=SC2046 # one flag or none
    "$CHECKOUT/scripts/build.sh" $([ "$PROFILE" != release ] || echo --release) --only cwasi-operator
fi
[[ " ${cases[*]} " != *" troubles "* ]] || fetch_gateway_api
[[ ! " ${cases[*]} " =~ " "(video|placement)" " ]] || build_video
[[ ! " ${cases[*]} " =~ " "(edges|video|policy|zero|scale|placement)" " ]] || build_redis
[[ " ${cases[*]} " != *" policy "* ]] || build_policies
[[ " ${cases[*]} " != *" e2e "* ]] || build_e2e
[[ ! " ${cases[*]} " =~ " "(zero|scale)" " ]] || build_keda
[[ " ${cases[*]} " != *" bench "* ]] || build_functions
if [ -d "$CLUSTER_DIR" ]; then
    say "removing what a killed run left"
    stop_cluster
fi
need_space
trap finish EXIT
trap 'exit 130' INT TERM HUP
mkdir -p "$CLUSTER_DIR"
say "starting the control plane"
start_control
! need_nodes || start_nodes
if [ -n "$shell" ]; then
    export -f kubectl on in_network
    export PROGRAMS CLUSTER_DIR
    "${SHELL:-bash}" || true
    exit 0
fi
started=$SECONDS
for name in "${cases[@]}"; do
    run_case "$name"
done
say "all cases: ok, $((SECONDS - started)) s"
