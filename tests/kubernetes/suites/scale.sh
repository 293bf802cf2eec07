# From one pod to more and back by HPAs of KEDA's, whose metrics server runs here: by calls that wait and run, by
# messages (`emit`), and by KEDA's own `redis-streams` scaler; each from zero and back to zero, and nothing is lost.
# And a function at zero that uses a service of its workflow. Only by its name, because KEDA's build (keda.sh) takes 15
# minutes.

# Calls at a time, and what each of them takes.
CLIENTS=12
CALL_MS=200
MESSAGES=60

prepare_on_demand
install_keda

apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: scale}
spec:
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      http: gateway
      scale: {min: 0, max: 3, calls: 2, cooldown: 10s}
      podTemplate: {spec: {terminationGracePeriodSeconds: 10, containers: [{name: server, command: [/server.wasm]}]}}
    worker:
      image: localhost/guests:test
      role: secondary
      scale: {min: 0, max: 3, calls: 4, cooldown: 10s}
      podTemplate:
        spec:
          terminationGracePeriodSeconds: 10
          volumes: [{name: log, hostPath: {path: /var/log/worker, type: DirectoryOrCreate}}]
          containers: [{name: worker, command: [/server.wasm], volumeMounts: [{name: log, mountPath: /log}]}]
    cart:
      image: localhost/guests:test
      role: secondary
      http: gateway
      uses: [cache]
      scale: {min: 0, max: 1, cooldown: 10s}
      podTemplate: {spec: {containers: [{name: cart, command: [/net.wasm, redis=PING, env=CACHE_SERVICE_PORT]}]}}
  services:
    cache: {image: "docker.io/library/redis:7", port: 6379, args: [redis-server, --save, "", --protected-mode, "no"]}
YAML

explain() {
    k describe workflows,scaledobjects,hpa >&2
    k get pods -o wide >&2
    kubectl -n cwasi-system logs -l app=cwasi-operator --tail 30 >&2
    kubectl -n keda logs deployment/keda-operator --tail 30 >&2
    kubectl -n keda logs deployment/keda-metrics-apiserver --tail 30 >&2
}

replicas() { field "deployment/$1" .spec.replicas; }
# at_zero DEPLOYMENT SELECTOR
at_zero() { [ "$(replicas "$1")" = 0 ] && gone pods -l "$2"; }
has_replicas() { has_field "deployment/$1" .status.readyReplicas "$2"; }
hpa_works() { has_field "hpa/keda-hpa-$1" '.status.conditions[?(@.type=="ScalingActive")].status' True; }
# wait_zero FUNCTION
wait_zero() { wait_for 120 "$1 has no pod" at_zero "scale-$1" "cwasi.dev/function=$1"; }

# Further clients of the function `server` on node1: clients NAME NUMBER; they end when /var/log/NAME.stop is there.
# What each call ended with is a line of /var/log/NAME.NUMBER.
clients() {
    local number
    for number in $(seq "$2"); do
        # shellcheck disable=SC2016 # the node's shell expands it
        on node1 sh -c 'while [ ! -e "/var/log/$1.stop" ]; do
                curl --silent --output /dev/null --write-out "%{http_code}\n" --max-time 60 --data "!sleep $2" "$3"
            done >"/var/log/$1.$4"' clients "$1" "$CALL_MS" "http://$GATEWAY/function/server" "$number" &
    done
}
end_clients() { on node1 touch "/var/log/$1.stop"; }
# calls NAME…: how often calls of clients ended in which way
calls() {
    local name
    for name in "$@"; do on node1 sh -c "cat /var/log/$name.[0-9]*"; done | sort | uniq -c | awk '{ print $2 ": " $1 }'
}
# recorded FUNCTION: different messages that its pods on both nodes have recorded
recorded() {
    local node
    for node in node1 node2; do on "$node" sh -c "cat /var/log/$1/executed 2>/dev/null || true"; done |
        cut -d ' ' -f 1 | sort -u | wc -l
}

start_gateway
for name in server worker cart; do wait_zero "$name"; done

say "      by calls"
clients few 1
clients many "$CLIENTS"
wait_for 120 "KEDA's HPA makes more pods" has_replicas scale-server 3
hpa_works scale-server || fail "the HPA has no metrics: $(k describe hpa keda-hpa-scale-server)"
say "      HPA: $(k get hpa keda-hpa-scale-server --no-headers)"
end_clients many
# The last client goes on.
wait_for 180 "KEDA's HPA takes pods away" has_replicas scale-server 1
end_clients few
wait_zero server
ends=$(calls few many)
say "      calls from 0 to 3 pods, to 1 and to 0: $ends"
equals "how calls ended" 200 "$(cut -d : -f 1 <<<"$ends" | paste -sd ' ')"

# messages: of which half are recorded and half take a second
messages() {
    local number
    for number in $(seq "$MESSAGES"); do printf '%s\n' "!record $number" '!sleep 1000'; done
}

say "      by messages that a function emits"
arguments=$(messages | sed 's/.*/"&"/' | paste -sd ,)
apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: sender}
spec:
  runtimeClassName: cwasi
  restartPolicy: Never
  containers: [{name: sender, image: "localhost/guests:test", command: [/probe.wasm, emit, worker, $arguments]}]
YAML
wait_for "$WAIT_SECONDS" "the messages are sent" has_field pod/sender .status.phase Succeeded
equals "messages that Redis keeps" "$((2 * MESSAGES))" "$(k logs sender | grep -c '^kept$')"
wait_for 120 "KEDA's HPA makes more pods" has_replicas scale-worker 3
wait_zero worker
equals "messages that were handled" "$MESSAGES" "$(recorded worker)"
equals "messages that were given up" 0 "$(redis EXISTS "cwasi:dead:k8s.io/$NAMESPACE/worker")"

say "      by KEDA's redis-streams scaler, a Deployment of one's own"
apply - <<YAML
apiVersion: v1
kind: Secret
metadata: {name: redis}
stringData: {password: $REDIS_PASSWORD}
---
apiVersion: keda.sh/v1alpha1
kind: TriggerAuthentication
metadata: {name: redis}
spec: {secretTargetRef: [{parameter: password, name: redis, key: password}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: listener}
spec:
  selector: {matchLabels: {app: listener}}
  template:
    metadata:
      labels: {app: listener}
      annotations:
        {cwasi.role: secondary, cwasi.function: listener, cwasi.triggers: "redis-stream:$NAMESPACE:orders"}
    spec:
      runtimeClassName: cwasi
      terminationGracePeriodSeconds: 10
      volumes: [{name: log, hostPath: {path: /var/log/listener, type: DirectoryOrCreate}}]
      containers:
        - name: listener
          image: localhost/guests:test
          command: [/server.wasm]
          volumeMounts: [{name: log, mountPath: /log}]
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: listener}
spec:
  scaleTargetRef: {name: listener}
  minReplicaCount: 0
  maxReplicaCount: 3
  pollingInterval: 5
  cooldownPeriod: 10
  initialCooldownPeriod: 10
  triggers:
    - type: redis-streams
      authenticationRef: {name: redis}
      metadata:
        address: $REDIS_ADDRESS:6379
        stream: $NAMESPACE:orders
        consumerGroup: cwasi:k8s.io/$NAMESPACE/listener
        lagCount: "10"
YAML
wait_rollout deployment/listener
wait_for 120 "the listener has no pod" at_zero listener app=listener
messages | while read -r payload; do
    printf 'XADD %s:orders * payload "%s"\n' "$NAMESPACE" "$payload"
done | redis >/dev/null
wait_for 120 "KEDA's HPA makes more pods" has_replicas listener 3
wait_for 180 "the listener has no pod" at_zero listener app=listener
equals "entries that were handled" "$MESSAGES" "$(recorded listener)"
equals "entries that were given up" 0 "$(redis EXISTS "cwasi:dead:k8s.io/$NAMESPACE/listener")"
k delete scaledobject listener >/dev/null

say "      a function at zero that uses a service"
wait_rollout deployment/scale-cache
# This cluster has no name server.
host=$(field deployment/scale-cart '.spec.template.spec.containers[0].env[?(@.name=="CACHE_SERVICE_HOST")].value')
alias="{\"ip\": \"$(address_of "$NAMESPACE" scale-cache)\", \"hostnames\": [\"$host\"]}"
k patch workflow scale --type merge \
    -p "{\"spec\": {\"functions\": {\"cart\": {\"podTemplate\": {\"spec\": {\"hostAliases\": [$alias]}}}}}}" >/dev/null
wait_for "$WAIT_SECONDS" "the operator has read it" has_field deployment/scale-cart \
    '.spec.template.spec.hostAliases[0].hostnames[0]' "$host"
wait_zero cart
said=$(on node1 curl --silent --max-time 60 --data x "http://$GATEWAY/function/cart")
equals "what the service says" $'redis=PING -> +PONG\nenv=CACHE_SERVICE_PORT -> 6379' "$said"
wait_zero cart
has_replicas scale-cache 1 || fail "the service went with its user's last pod"
k patch workflow scale --type json -p '[{"op": "remove", "path": "/spec/functions/cart"}]' >/dev/null
wait_for "$WAIT_SECONDS" "a service without a user is gone" gone deployment/scale-cache service/scale-cache

k delete workflow scale >/dev/null
stop_gateway
remove_keda
