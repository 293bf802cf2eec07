# Memory pressure on a node: the kubelet evicts the function that takes more than it asked for, and no other one. Its
# Deployment has it on the other node then, nothing is left of it, and calls go on.
NODE=node2
# What the evicted function takes, in MiB, and how much of it is beyond what the node lets it have.
HELD=900
BEYOND=400

# keep_free AMOUNT: the kubelet of the node evicts when less memory is available
keep_free() {
    on "$NODE" sed -i "s/memory.available: [^,]*/memory.available: $1/" /etc/kubernetes/kubelet.yaml
    restart_service "$NODE" kubelet
}
# As the kubelet counts it: what the machine has less the working set of the node, in MiB.
available() {
    on "$NODE" sh -c 'awk "/^MemTotal/ { total = \$2 / 1024 } /^total_inactive_file/ { file = \$2 / 1048576 }
        FILENAME ~ /usage/ { used = \$1 / 1048576 } END { printf \"%d\", total - used + file }" \
        /proc/meminfo /sys/fs/cgroup/memory/memory.stat /sys/fs/cgroup/memory/memory.usage_in_bytes'
}
has_pressure() { [ "$(field "node/$NODE" '.status.conditions[?(@.type=="MemoryPressure")].status')" = "$1" ]; }

calling_pod caller "$NODE" server
wait_calls caller 50 "$WAIT_SECONDS"
keep_free "$(($(available) - HELD + BEYOND))Mi"
wait_for "$WAIT_SECONDS" "the node has no memory pressure" has_pressure False

# Rather on that node, but anywhere else if it cannot be there.
apply - <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: holder}
spec:
  selector: {matchLabels: {app: holder}}
  template:
    metadata: {labels: {app: holder}}
    spec:
      runtimeClassName: cwasi
      terminationGracePeriodSeconds: 5
      affinity:
        nodeAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              preference: {matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [$NODE]}]}
      containers: [{name: main, image: "localhost/guests:test", command: [/probe.wasm, hold, "$HELD"]}]
YAML
pods() { k get pods -l app=holder -o "jsonpath={range .items[*]}{.spec.nodeName} {.status.phase} {.status.reason}{'\n'}{end}"; }
is_evicted() { pods | grep -qx "$NODE Failed Evicted"; }
is_elsewhere() { pods | grep -q "^node1 Running"; }
explain() { pods >&2; kubectl describe "node/$NODE" | tail -n 40 >&2; }
wait_for 180 "the function that takes most is evicted" is_evicted
wait_for "$WAIT_SECONDS" "it runs on the other node" is_elsewhere
wait_for 120 "the pressure is over" has_pressure False
one_group() { [ "$(on "$NODE" sh -c 'ls /run/cwasi/g | wc -l')" = 1 ]; }
wait_for "$WAIT_SECONDS" "only the caller's pod is left on $NODE" one_group
explain() { :; }
contains "why it was evicted" 'low on resource: memory' \
    "$(k get pods -l app=holder -o 'jsonpath={.items[*].status.message}')"
wait_calls caller 50 "$WAIT_SECONDS"
equals "phase of the pod within its requests" Running "$(field pod/caller .status.phase)"
failed=$(failed_calls caller)
equals "calls that failed" "" "$failed"
keep_free 100Mi
delete deployment holder
delete pod caller
