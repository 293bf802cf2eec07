# Networks that let through only what calls between nodes need. NetworkPolicies, by a controller on both nodes: pods of
# functions may send and take nothing, Redis takes connections of nodes and of its namespace. Firewalls of nodes: the
# port of direct connections, and Redis. Calls go directly with all of that, over Redis while the port is closed, and
# directly again when it is open. No call fails.
#
# The port is the node's own, and no NetworkPolicy selects its traffic: that is the firewalls' part.
PORT=9470
CWASI=$STATIC_PROGRAMS/$PROFILE/cwasi
declare -A OTHER=([node1]=node2 [node2]=node1)
address() { echo "10.99.0.${NODE_NUMBER[$1]}"; }

for node in node1 node2; do
    import_images "$node" redis
    # The CNI plugins hide pods behind their node's address, also from other pods. Most clusters do not.
    on "$node" iptables -t nat -I POSTROUTING -s 10.88.0.0/16 -d 10.88.0.0/16 -j ACCEPT
    start_policies "$node"
done
kubectl apply -f "$CHECKOUT/deploy/kubernetes/redis.yaml" >/dev/null
configure_nodes 'redis_url = "redis://:change-me@10.96.0.63:6379"'
wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s

serving_pods 1 'nodeName: node2'
calling_pod caller node1
# A pod without functions, in a namespace without policies.
STRANGERS=$NAMESPACE-strangers
kubectl create namespace "$STRANGERS" >/dev/null
kubectl -n "$STRANGERS" run stranger --image localhost/busybox:test --image-pull-policy IfNotPresent --restart Never \
    -- sleep 3600 >/dev/null
wait_for "$WAIT_SECONDS" "the stranger runs" \
    kubectl -n "$STRANGERS" wait --for=condition=Ready pod/stranger --timeout=1s

# Whether a pod's native container reaches Redis, over the pods' network.
reaches_redis() { [[ $(echo PING | kubectl "$@" -- nc -w 3 10.96.0.63 6379 2>/dev/null) == *NOAUTH* ]]; }
function_reaches_redis() { reaches_redis -n "$NAMESPACE" exec -i caller -c shell; }
stranger_reaches_redis() { reaches_redis -n "$STRANGERS" exec -i stranger; }
not() { ! "$@"; }

# calls_by PATH: calls of this case that ended on this path
calls_by() {
    on node1 "$CWASI" metrics | awk -v of="pod_namespace=\"$NAMESPACE\"" -v by="path=\"$1\"" '
        /^cwasi_calls_total[{]/ && index($0, of) && index($0, by) { sum += $NF }
        END { print sum + 0 }'
}
go_by() { [ "$(calls_by "$1")" -gt "$2" ]; }
explain_calls() {
    explain_now >&2 || true
    on node1 sh -c 'cat /run/cwasi/g/*/daemon.log' | tail -n 20 >&2
    for node in node1 node2; do on "$node" iptables -vnL >&2; done
}
explain_now() {
    on node1 "$CWASI" --namespace k8s.io explain --pod-namespace "$NAMESPACE" probe server
}
# wait_path PATH WHY: calls go this way, and `cwasi explain` says why
wait_path() {
    local before
    explain() { explain_calls; }
    before=$(calls_by "$1")
    wait_for 60 "calls go by the path $1" go_by "$1" $((before + 50))
    explain() { :; }
    contains "why calls go by the path $1" "networked +yes +instances on node2 \($2" "$(explain_now)"
    equals "calls that failed" "" "$(failed_calls caller)"
}
# The new pod's shim is another one, which takes new connections.
new_server() {
    k rollout restart deployment/server >/dev/null
    wait_rollout deployment/server
    wait_for 60 "the old server is gone" one_server
}
one_server() { [ "$(k get pods -l app=server -o name | wc -l)" = 1 ]; }

wait_path direct directly
wait_for 30 "a function's pod reaches Redis" function_reaches_redis
wait_for 30 "a stranger reaches Redis" stranger_reaches_redis

say "      NetworkPolicies: nothing for the functions' pods, for Redis the nodes and its namespace"
apply - <<'YAML'
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: nothing}
spec: {podSelector: {}, policyTypes: [Ingress, Egress]}
YAML
kubectl apply -f - >/dev/null <<YAML
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: redis, namespace: cwasi-system}
spec:
  podSelector: {matchLabels: {app: redis}}
  policyTypes: [Ingress]
  ingress:
    - from: [{podSelector: {}}, {ipBlock: {cidr: $(address node1)/32}}, {ipBlock: {cidr: $(address node2)/32}}]
      ports: [{port: 6379}]
YAML
wait_for 30 "a function's pod does not reach Redis" not function_reaches_redis
wait_for 30 "a stranger does not reach Redis" not stranger_reaches_redis
new_server
wait_path direct directly

say "      firewalls: $PORT and Redis from the other node"
# From other machines: answers, all of the control plane, and what calls need.
firewall() {
    local node=$1 chain
    for chain in INPUT FORWARD; do
        on "$node" iptables -N "NODES-$chain"
        on "$node" iptables -A "NODES-$chain" -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN
        on "$node" iptables -A "NODES-$chain" -s "$CONTROL_ADDRESS" -j RETURN
    done
    on "$node" iptables -A NODES-INPUT -s "$(address "${OTHER[$node]}")" -p tcp --dport "$PORT" -j RETURN
    on "$node" iptables -A NODES-FORWARD -s "$(address "${OTHER[$node]}")" -p tcp --dport 6379 -j RETURN
    for chain in INPUT FORWARD; do
        on "$node" iptables -A "NODES-$chain" -j DROP
        on "$node" iptables -I "$chain" -i eth0 -j "NODES-$chain"
    done
}
# connects NODE PORT: from the other node
connects() { on "${OTHER[$1]}" timeout 2 bash -c "</dev/tcp/$(address "$1")/$2" 2>/dev/null; }
connects node2 10250 || fail "the kubelet of node2 does not answer without a firewall"
for node in node1 node2; do firewall "$node"; done
connects node2 10250 && fail "the firewall of node2 lets other ports through"
connects node2 "$PORT" || fail "the firewall of node2 does not let $PORT through"
new_server
wait_path direct directly
# Packets that the rule for the port let through.
taken() { on "$1" iptables -vnxL NODES-INPUT | awk -v port="dpt:$PORT" '$0 ~ port { print $1 }'; }
[ "$(taken node2)" -gt 0 ] || fail "no connection came through the rule for $PORT: calls use another network"

say "      the port is closed, and open again"
closed=(NODES-INPUT -p tcp --dport "$PORT" -m conntrack --ctstate NEW -j DROP)
for node in node1 node2; do on "$node" iptables -I "${closed[@]}"; done
# Open connections stay; the new pod's shim needs one of its own.
new_server
wait_path redis 'over Redis'
say "      $(explain_now | tail -n 1)"
for node in node1 node2; do on "$node" iptables -D "${closed[@]}"; done
wait_path direct directly
say "      $(calls_by direct) direct calls and $(calls_by redis) over Redis, none failed"

# A firewall that also ends open connections: a call that is on one may be unknown then, and no further one fails.
on node2 iptables -I NODES-INPUT 1 -p tcp --dport "$PORT" -j REJECT --reject-with tcp-reset
explain() { explain_calls; }
wait_for 60 "calls go by the path redis" go_by redis $(($(calls_by redis) + 50))
explain() { :; }
say "      failed when open connections were cut: $(failed_calls caller | tr '\n' ' ')"
[ "$(failed_calls caller | wc -l)" -le 1 ] || fail "more than one call failed: $(failed_calls caller)"

k exec caller -c shell -- touch /shared/stop
wait_field pod/caller '.status.containerStatuses[?(@.name=="caller")].state.terminated.exitCode' 0
delete pod caller
delete deployment server
for node in node1 node2; do
    # First: the controller writes back all rules that it has read. So there may be two that jump to a chain.
    stop_policies "$node"
    for chain in INPUT FORWARD; do
        while on "$node" iptables -D "$chain" -i eth0 -j "NODES-$chain" 2>/dev/null; do :; done
        on "$node" iptables -F "NODES-$chain"
    done
    on "$node" iptables -t nat -D POSTROUTING -s 10.88.0.0/16 -d 10.88.0.0/16 -j ACCEPT
done
remove_namespaces "$STRANGERS"
kubectl -n cwasi-system delete networkpolicy redis >/dev/null
kubectl delete -f "$CHECKOUT/deploy/kubernetes/redis.yaml" --wait=false >/dev/null
configure_nodes ''
