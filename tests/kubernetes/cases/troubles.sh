# What can go wrong around the operator: it is killed, a second one takes over, a namespace goes, pods are refused, the
# definition of Workflows is replaced meanwhile. No node takes part: operators are processes beside the API server.

condition() { field "workflow/$1" ".status.conditions[?(@.type==\"$2\")].$3"; }
has_reason() { [ "$(condition "$1" "$2" reason)" = "$3" ]; }

show_operators() {
    local name
    k describe workflows >&2
    for name in $OPERATORS; do
        tail -n 20 "$CLUSTER_DIR/control/disk/var/log/$name.log" 2>/dev/null | sed "s/^/$name: /" >&2 || true
    done
}

wait_reason() {
    explain() { show_operators; }
    wait_for "$WAIT_SECONDS" "$1 is $2 because of $3" has_reason "$1" "$2" "$3"
    explain() { :; }
}

# workflow NAME [FIELDS]: of two functions, with further fields of the first
workflow() {
    cat <<YAML
---
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: $1}
spec:
  functions:
    front: {image: "localhost/front:1", role: secondary, http: 8080${2:+, $2}}
    prices: {image: "localhost/prices:1", role: secondary}
YAML
}

# is_made NAME: it has a status and its three objects
is_made() {
    [ "$(field "workflow/$1" .status.observedGeneration)" = "$(field "workflow/$1" .metadata.generation)" ] &&
        k get "deployment/$1-front" "deployment/$1-prices" "service/$1-front" >/dev/null
}

wait_made() {
    explain() { show_operators; }
    wait_for "$WAIT_SECONDS" "the objects of $1" is_made "$1"
    explain() { :; }
}

prepare_operators
kubectl delete runtimeclass cwasi --ignore-not-found >/dev/null

say "      two operators, of which one works"
for name in $OPERATORS; do
    start_operator "$name"
done
one_leads() { [ "$(for name in $OPERATORS; do is_leader "$name" && echo leads; done)" = leads ]; }
wait_for 30 "one operator leads" one_leads
if is_leader operator-a; then leader=operator-a other=operator-b; else leader=operator-b other=operator-a; fi
start=$(audit_point)
workflow first | apply -
wait_made first
[ "$(count_requests "$start" "$leader" "$WRITES" '"name":"first-')" -ge 3 ] || fail "the audit log does not have the leader's writes"
equals "what the other one has written" "" "$(requests "$start" "$other" "$WRITES" | head -n 3)"

say "      a missing RuntimeClass"
wait_reason first Degraded FailedCreate
contains "the remedy" 'install the runtime.s RuntimeClass' "$(condition first Degraded message)"

say "      the leader is killed: the other one takes over, and writes nothing that is there"
killed=$(audit_point)
stop_operator "$leader" KILL
workflow second | apply -
wait_made second
is_leader "$other" || fail "$other has made objects and does not lead"
equals "objects of before that were written again" "" \
    "$(requests "$killed" "$other" "$WRITES" '"name":"first-' | head -n 3)"

say "      the leader hangs: it ends when it wakes, and writes nothing any more"
start_operator "$leader"
signal_operator "$other" STOP
explain() { show_operators; }
wait_for 60 "$leader leads" is_leader "$leader"
workflow third | apply -
wait_made third
taken=$(audit_point)
signal_operator "$other" CONT
wait_for 30 "$other has ended" operator_ended "$other"
contains "why it has ended" 'the Lease was lost' "$(tail -n 3 "$CLUSTER_DIR/control/disk/var/log/$other.log")"
equals "what it has written after that" "" "$(requests "$taken" "$other" "$WRITES" | head -n 3)"
explain() { :; }

say "      the operator is killed between two objects"
for round in 1 2 3; do
    names=()
    for number in $(seq 15); do
        names+=("killed$round-$number")
    done
    for name in "${names[@]}"; do workflow "$name"; done | apply - &
    applying=$!
    some_made() { [ "$(k get deployments -o name | grep -c "killed$round-")" -gt 5 ]; }
    wait_for "$WAIT_SECONDS" "some objects are made" some_made
    stop_operator "$leader" KILL
    wait "$applying"
    start_operator "$leader"
    for name in "${names[@]}"; do wait_made "$name"; done
    k delete workflow "${names[@]}" --wait=false >/dev/null
done

say "      objects of all kinds are as they were applied, in the API server's words"
apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: kinds}
spec:
  placement: {edges: {"front->prices": node}}
  functions:
    front:
      image: localhost/front:1
      role: secondary
      http: 8080
      scale: {min: 2, max: 5}
      ingress: {host: kinds.example, tls: certificate}
      podTemplate: {spec: {volumes: [{name: tmp, emptyDir: {}}], containers: [{name: front, resources: {limits: {cpu: "0.5"}}}]}}
    prices: {image: "localhost/prices:1", role: secondary, replicas: 3}
    nightly: {image: "localhost/nightly:1", schedule: "0 3 * * *"}
    once: {image: "localhost/once:1"}
    cart: {image: "localhost/cart:1", role: secondary, uses: [cache, store], triggers: [{redis: {stream: "kinds:orders"}}]}
  services:
    cache: {image: "localhost/redis:7", port: 6379, health: {command: [redis-cli, ping]}}
    store: {image: "localhost/store:1", port: 9000, health: {http: /ready}, storage: {path: /data, size: 1Gi}}
YAML
wait_made kinds
k get deployment/kinds-cache service/kinds-cache statefulset/kinds-store service/kinds-store >/dev/null
k get ingress/kinds-front hpa/kinds-front pdb/kinds-front pdb/kinds-prices cronjob/kinds-nightly >/dev/null
reconciles() { operator_metrics "$leader" | awk '$1 == "cwasi_operator_reconciles_total{result=\"ok\"}" { print $2 }'; }
start=$(audit_point) before=$(reconciles)
k annotate workflow kinds look=now >/dev/null
has_looked() { [ "$(reconciles)" -gt "$before" ]; }
wait_for 30 "the operator looks at the Workflow" has_looked
equals "objects that were applied once more" "" \
    "$(requests "$start" "$leader" "$WRITES" '"name":"kinds-' | grep -v '"resource":"events"' | head -n 3)"
k patch ingress kinds-front --type json -p '[{"op":"replace","path":"/spec/rules/0/host","value":"other.example"}]' >/dev/null
wait_field ingress/kinds-front '.spec.rules[0].host' kinds.example
k delete hpa kinds-front >/dev/null
wait_for 30 "a deleted object is made again" k get hpa kinds-front
k delete workflow kinds >/dev/null

say "      a Gateway, before and after the cluster knows HTTPRoutes"
workflow routed 'ingress: {host: routed.example, gateway: infra/public}' | apply -
wait_made routed
wait_reason routed Degraded NoGatewayApi
kubectl apply --server-side -f "$HTTP_ROUTES" >/dev/null
wait_for "$WAIT_SECONDS" "the HTTPRoute is made" k get httproute routed-front
equals "the route's Gateway" infra/public "$(field httproute/routed-front '.spec.parentRefs[0].namespace}/{.spec.parentRefs[0].name')"
# This cluster has no controller of Gateways.
wait_reason routed Degraded NoRoute
start=$(audit_point) before=$(reconciles)
k annotate workflow routed look=now >/dev/null
wait_for 30 "the operator looks at the Workflow" has_looked
equals "an HTTPRoute that was applied once more" "" "$(requests "$start" "$leader" "$WRITES" '"resource":"httproutes"' | head -n 3)"
parent='{"parentRef": {"name": "public"}, "controllerName": "test/gateways", "conditions": [{"type": "Accepted", "status": "%s", "reason": "%s",
    "message": "as the test says", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}'
# shellcheck disable=SC2059 # the format is above
answer() { k patch httproute routed-front --subresource status --type merge -p "{\"status\": {\"parents\": [$(printf "$parent" "$@")]}}" >/dev/null; }
answer False NotAllowedByListeners
says_why() { [[ $(condition routed Degraded message) == *"as the test says (NotAllowedByListeners)"* ]]; }
wait_for 30 "the condition says what the Gateway says" says_why
answer True Accepted
has_route() { ! has_reason routed Degraded NoRoute; }
wait_for 30 "the condition says no longer that there is no route" has_route
kubectl delete -f "$HTTP_ROUTES" >/dev/null
wait_reason routed Degraded NoGatewayApi
k delete workflow routed >/dev/null

say "      a quota that refuses pods"
kubectl apply -f "$CHECKOUT/deploy/kubernetes/runtimeclass.yaml" >/dev/null
k create quota none --hard pods=0 >/dev/null
quota_counts() { [ "$(field quota/none .status.hard.pods)" = 0 ]; }
wait_for "$WAIT_SECONDS" "the quota is in force" quota_counts
workflow limited | apply -
wait_reason limited Degraded FailedCreate
contains "the quota and the remedy" 'exceeded quota: none.*raise the namespace.s quota' "$(condition limited Degraded message)"
k delete quota none >/dev/null
# Replica sets try again after a while; a new one does at once.
k rollout restart deployment/limited-front deployment/limited-prices >/dev/null
has_pods() { [ "$(k get pods -l cwasi.dev/workflow=limited -o name | wc -l)" -ge 2 ]; }
wait_for "$WAIT_SECONDS" "pods are made without the quota" has_pods
is_over() { ! has_reason limited Degraded FailedCreate; }
explain() { show_operators; }
wait_for "$WAIT_SECONDS" "the condition says no longer that pods are refused" is_over
explain() { :; }

say "      a namespace that goes"
kubectl create namespace going >/dev/null
# It stays while this object does.
kubectl -n going create configmap stays >/dev/null
kubectl -n going patch configmap stays --type merge -p '{"metadata":{"finalizers":["test/stays"]}}' >/dev/null
for number in $(seq 5); do workflow "going$number"; done | kubectl -n going apply -f - >/dev/null
kubectl delete namespace going --wait=false >/dev/null
nothing_left() { [ -z "$(kubectl -n going get workflows,deployments,services,pods -o name)" ]; }
explain() { kubectl -n going get workflows,deployments,services,pods >&2; show_operators; }
wait_for "$WAIT_SECONDS" "nothing of the Workflows is left" nothing_left
start=$(audit_point)
sleep 20
equals "requests about a namespace that goes" "" "$(requests "$start" "$leader" '"namespace":"going"' | head -n 3)"
kubectl -n going patch configmap stays --type merge -p '{"metadata":{"finalizers":null}}' >/dev/null
is_gone() { ! kubectl get namespace going >/dev/null 2>&1; }
wait_for "$WAIT_SECONDS" "the namespace is gone" is_gone
explain() { :; }
workflow after | apply -
wait_made after

say "      a newer definition, with a column and a field that this operator does not know"
column='{"op":"add","path":"/spec/versions/0/additionalPrinterColumns/-","value":{"name":"Newer","type":"string","jsonPath":".metadata.name"}}'
functions=/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/functions
new_field='{"op":"add","path":"'$functions'/additionalProperties/properties/newer","value":{"type":"string"}}'
start=$(audit_point)
for number in $(seq 10); do
    workflow "old$number" | apply -
    [ "$number" != 5 ] || kubectl patch crd workflows.cwasi.dev --type json -p "[$column,$new_field]" >/dev/null
done
for number in $(seq 10); do wait_made "old$number"; done
has_column() { k get workflows | head -n 1 | grep -q NEWER; }
wait_for 30 "the table has the new column" has_column
equals "objects of before that were written again" "" "$(requests "$start" "$leader" "$WRITES" '"name":"first-' | head -n 3)"
takes_newer() { workflow newer 'newer: "x"' | apply - && [ "$(field workflow/newer .spec.functions.front.newer)" = x ]; }
wait_for 30 "the API takes the new field" takes_newer
wait_reason newer Degraded Invalid
contains "what the operator says" 'unknown field `newer`' "$(condition newer Degraded message)"
kubectl replace -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
loses_newer() { workflow newer | apply - && [ -z "$(field workflow/newer .spec.functions.front.newer)" ]; }
wait_for 30 "the API has the definition of before" loses_newer
wait_made newer

stop_operator "$leader"
kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" --ignore-not-found --wait=false >/dev/null
