# Limits of pods hold, and the kubelet sees what pods use.

# A pod that takes more memory than it may have is killed, and says so.
apply - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: greedy}
spec:
  runtimeClassName: cwasi
  restartPolicy: Never
  containers:
    - {name: main, image: "localhost/guests:test", command: [/probe.wasm, alloc, "200"], resources: {limits: {memory: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: hog
  annotations: {cwasi.role: secondary}
spec:
  runtimeClassName: cwasi
  terminationGracePeriodSeconds: 5
  containers:
    - {name: hog, image: "localhost/guests:test", command: [/actor.wasm, hog], resources: {limits: {memory: 64Mi}}}
---
apiVersion: v1
kind: Pod
metadata:
  name: spinner
  annotations: {cwasi.role.server: secondary}
spec:
  runtimeClassName: cwasi
  terminationGracePeriodSeconds: 5
  restartPolicy: Never
  containers:
    - {name: main, image: "localhost/guests:test", command: [/probe.wasm, loop], resources: {limits: {cpu: 200m, memory: 64Mi}}}
YAML
wait_field pod/greedy .status.phase Failed
equals "exit code beyond the memory limit" 137 "$(field pod/greedy '.status.containerStatuses[0].state.terminated.exitCode')"
equals "reason beyond the memory limit" OOMKilled "$(field pod/greedy '.status.containerStatuses[0].state.terminated.reason')"

# A secondary's worker is killed: its caller reads an error, and the function goes on.
wait_field pod/hog .status.phase Running
for attempt in first second; do
    apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $attempt}
spec:
  runtimeClassName: cwasi
  restartPolicy: Never
  nodeName: $(field pod/hog .spec.nodeName)
  containers: [{name: main, image: "localhost/guests:test", command: [/probe.wasm, call, actor, x]}]
YAML
    wait_field "pod/$attempt" .status.phase Failed
    equals "errno of the $attempt caller" 11 "$(field "pod/$attempt" '.status.containerStatuses[0].state.terminated.exitCode')"
done
equals "restarts of the hog" 0 "$(field pod/hog '.status.containerStatuses[0].restartCount')"

# What the kubelet's summary says of the pod that spins: `kubectl top` has the same source. First its container's values,
# then the pod's.
summary() {
    k get --raw "/api/v1/nodes/$(field pod/spinner .spec.nodeName)/proxy/stats/summary" | awk -v key="\"$1\":" '
        $1 == "\"podRef\":" { is_ours = 0 }
        $1 == "\"name\":" && $2 == "\"spinner\"," { is_ours = 1 }
        is_ours && $1 == key { sub(",", "", $2); printf "%s ", $2 }'
}
# CPU in billionths of a processor: it may have 200 million, a bit more in a short window.
has_summary() {
    local container pod
    read -r container pod < <(summary usageNanoCores)
    [ "$container" -gt 100000000 ] && [ "$pod" -gt 100000000 ] && [ "$pod" -lt 300000000 ] || return 1
    read -r container pod < <(summary workingSetBytes)
    [ "$container" -gt 100000 ] && [ "$pod" -gt 100000 ] || return 1
    read -r container pod < <(summary rssBytes)
    [ "$container" -gt 0 ] && [ "$pod" -gt 0 ]
}
wait_field pod/spinner .status.phase Running
explain() { summary usageNanoCores >&2; summary workingSetBytes >&2; summary rssBytes >&2; }
wait_for 60 "the kubelet's summary has the pod's CPU and memory" has_summary
explain() { :; }

# What metrics-server reads of each node, for `kubectl top` and autoscalers.
resource() {
    k get --raw "/api/v1/nodes/$(field pod/spinner .spec.nodeName)/proxy/metrics/resource" |
        awk -v metric="^$1{.*namespace=\"$NAMESPACE\",pod=\"spinner\"}" '$0 ~ metric { print $2 }'
}
has_resources() {
    local metric
    for metric in {container,pod}_cpu_usage_seconds_total {container,pod}_memory_working_set_bytes; do
        resource "$metric" | awk '$1 > 0 { found = 1 } END { exit !found }' || return 1
    done
}
explain() { resource '[a-z_]*' >&2; }
wait_for 60 "the metrics of the node have the pod's and the container's CPU and memory" has_resources
explain() { :; }
delete pod greedy hog spinner first second
