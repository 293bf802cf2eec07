# The status says how calls move: LOCAL of a workflow on one node and of one on two nodes; advice for an edge between
# nodes, which moves no running pod, and moves a function at its next rollout.
import_images node1 redis
import_images node2 redis
kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" -f "$CHECKOUT/deploy/kubernetes/redis.yaml" >/dev/null
configure_nodes 'redis_url = "redis://:change-me@10.96.0.63:6379"'
wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s
wait_for "$WAIT_SECONDS" "the API knows workflows" kubectl get workflows -A
kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null

condition() { field "workflow/$1" ".status.conditions[?(@.type==\"$2\")].$3"; }
has_reason() { [ "$(condition "$1" "$2" reason)" = "$3" ]; }
explain_status() {
    k get workflows -o yaml >&2
    k get pods -o wide >&2
    kubectl -n cwasi-system logs -l app=cwasi-operator --tail 50 >&2
}
# wait_reason WORKFLOW CONDITION REASON
wait_reason() {
    explain() { explain_status; }
    wait_for 180 "$1 is $2 because of $3" has_reason "$1" "$2" "$3"
    explain() { :; }
}

# calls NAME PLACEMENT [without the caller]: a function that calls another one again and again
calls() {
    cat <<YAML
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: $1}
spec:
  placement: $2
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      podTemplate: {spec: {containers: [{name: server, command: [/server.wasm]}]}}
YAML
    [ -n "${3:-}" ] || cat <<YAML
    caller:
      image: localhost/guests:test
      args: [number, server, /shared]
      podTemplate:
        spec:
          volumes: [{name: shared, emptyDir: {}}]
          containers: [{name: caller, command: [/probe.wasm], volumeMounts: [{name: shared, mountPath: /shared}]}]
YAML
}
node_of() { k get pods -l "cwasi.dev/workflow=$1,cwasi.dev/function=$2" --field-selector status.phase=Running \
    -o 'jsonpath={.items[*].spec.nodeName}'; }

# Without the nodes' metrics the status says what is missing, and the workflow is ready.
calls bare '{policy: auto}' only-server | apply -
wait_reason bare Measured NoMetrics
contains "the remedy" 'kubectl apply -f metrics.yaml' "$(condition bare Measured message)"
contains "the table" '^bare +True +1/1 +- +AllReady' "$(k get workflows --no-headers)"
k delete workflow bare >/dev/null
kubectl apply -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" >/dev/null

declare -A placements=([near]='{policy: auto}' [far]='{policy: spread}') shares=([near]=100% [far]=0%)
is_measured() { [[ $(field "workflow/$1" .status.local) == *% ]]; }
for workflow in near far; do
    wait_for 60 "no pods are left" gone pods
    calls "$workflow" "${placements[$workflow]}" | apply -
    explain() { explain_status; }
    wait_for 240 "calls of $workflow are measured" is_measured "$workflow"
    explain() { :; }
    say "      $workflow: $(field "workflow/$workflow" .status.edges)"
    equals "the share of $workflow" "${shares[$workflow]}" "$(field "workflow/$workflow" .status.local)"
    equals "the metrics" True "$(condition "$workflow" Measured status)"
    k delete workflow "$workflow" >/dev/null
done
wait_for 60 "no pods are left" gone pods

# An edge between nodes that would be on one: the caller found no room there.
calls apart '{policy: auto, move: true}' only-server | apply -
explain() { explain_status; }
wait_for "$WAIT_SECONDS" "the server is ready" k wait --for=condition=Ready workflow/apart --timeout=1s
explain() { :; }
full=$(node_of apart server)
kubectl cordon "$full" >/dev/null
calls apart '{policy: auto, move: true}' | apply -
has_other_node() { [ -n "$(node_of apart caller)" ]; }
explain() { explain_status; }
wait_for "$WAIT_SECONDS" "the caller runs" has_other_node
explain() { :; }
kubectl uncordon "$full" >/dev/null
other=$(node_of apart caller)
[ "$other" != "$full" ] || fail "both functions are on $full"
wait_reason apart PlacementAdvice NetworkedEdges
contains "the advice" '^caller -> server: 100% of .* calls/s' "$(condition apart PlacementAdvice message)"
contains "the table" '^apart +True +2/2 +0% +AllReady' "$(k get workflows --no-headers)"
equals "rollouts for the advice alone" 1 "$(field deployment/apart-server .metadata.generation)"
equals "the server's node before a rollout" "$full" "$(node_of apart server)"
k rollout restart deployment/apart-server >/dev/null
moved() { [ "$(node_of apart server)" = "$other" ]; }
explain() { explain_status; }
wait_for "$WAIT_SECONDS" "the server follows its caller at a rollout" moved
explain() { :; }
equals "what the server is near to" caller "$(field deployment/apart-server '.metadata.annotations.cwasi\.dev/near')"
contains "the operator's log" 'PlacementAdvice=True \(NetworkedEdges\)' \
    "$(kubectl -n cwasi-system logs -l app=cwasi-operator --tail -1)"

k delete workflow apart >/dev/null
wait_for 60 "no pods are left" gone pods
kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" \
    -f "$CHECKOUT/deploy/kubernetes/redis.yaml" --wait=false >/dev/null
configure_nodes ''
