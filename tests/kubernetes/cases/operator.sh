# Workflows by `kubectl apply`: objects, status, calls by HTTP, changes, faults, deletion; the operator killed meanwhile.
install_operator

condition() { field "workflow/$1" ".status.conditions[?(@.type==\"$2\")].$3"; }

wait_ready() {
    explain() { k describe workflows >&2; k describe pods >&2; kubectl -n cwasi-system logs deployment/cwasi-operator >&2; }
    wait_for "$WAIT_SECONDS" "the workflow $1 is ready" k wait --for=condition=Ready "workflow/$1" --timeout=1s
    explain() { :; }
}

has_reason() { [ "$(condition "$1" "$2" reason)" = "$3" ]; }

wait_reason() {
    explain() { k describe workflows >&2; kubectl -n cwasi-system logs deployment/cwasi-operator >&2; }
    wait_for "$WAIT_SECONDS" "$1 is $2 because of $3" has_reason "$1" "$2" "$3"
    explain() { :; }
}

# hello PLACEMENT: the workflow of two functions
hello() {
    cat <<YAML
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: hello}
spec:
  placement: {policy: $1}
  functions:
    greeter:
      image: localhost/hello:1
      role: secondary
      podTemplate: {spec: {containers: [{name: greeter, command: [/greeter.wasm]}]}}
    hello:
      image: localhost/hello:1
      args: [Ada, Grace]
      podTemplate: {spec: {containers: [{name: hello, command: [/hello-caller.wasm]}]}}
YAML
}

for placement in auto pod; do
    hello "$placement" | apply -
    wait_ready hello
    # The status of the placement before is not that of this one.
    wait_field workflow/hello .status.observedGeneration "$(field workflow/hello .metadata.generation)"
    wait_ready hello
    job=$(field workflow/hello '.status.functions[?(@.name=="hello")].workload')
    wait_job "${job#Job/}"
    equals "greetings with placement $placement" $'Hello, Ada!\nHello, Grace!' "$(k logs "$job" -c hello | grep ^Hello)"
    equals "functions with placement $placement" 2/2 "$(field workflow/hello .status.readyFunctions)"
done
hello auto | apply -
wait_field workflow/hello .status.observedGeneration "$(field workflow/hello .metadata.generation)"
wait_ready hello
contains "the table" '^hello +True +2/2 +(- +)?AllReady' "$(k get workflows --no-headers)"
contains "the digest of an image" '^sha256:' "$(field workflow/hello '.status.functions[0].imageDigest')"

apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: wide}
spec:
  placement: {policy: spread}
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      replicas: 2
      podTemplate: {spec: {containers: [{name: server, command: [/server.wasm]}]}}
YAML
wait_ready wide
equals "nodes of a spread function" $'node1\nnode2' \
    "$(k get pods -l cwasi.dev/workflow=wide -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort)"

# An autoscaler takes over from `replicas`: the same pods run on. One that is at zero would leave it there.
pods_of_wide() { k get pods -l cwasi.dev/workflow=wide -o 'jsonpath={.items[*].metadata.uid}'; }
before=$(pods_of_wide)
k patch workflow wide --type json -p '[
    {"op": "remove", "path": "/spec/functions/server/replicas"},
    {"op": "add", "path": "/spec/functions/server/scale", "value": {"min": 1, "max": 3}}
]' >/dev/null
wait_for 30 "there is an autoscaler" k get horizontalpodautoscaler wide-server
wait_field workflow/wide .status.observedGeneration "$(field workflow/wide .metadata.generation)"
equals "pods when an autoscaler takes over" "2 $before" "$(field deployment/wide-server .spec.replicas) $(pods_of_wide)"
k scale deployment/wide-server --replicas 0 >/dev/null
wait_field deployment/wide-server .status.readyReplicas 1
wait_ready wide

# A port of the node: the old pod goes first.
apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: port}
spec:
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      http: 8097
      hostNetwork: true
      podTemplate:
        spec:
          nodeSelector: {kubernetes.io/hostname: node1}
          containers: [{name: server, command: [/server.wasm]}]
YAML
wait_ready port
k rollout restart deployment/port-server >/dev/null
wait_rollout deployment/port-server
equals "an answer at the node's port" hello "$(on node1 curl --silent --max-time 10 --data hello http://127.0.0.1:8097/)"

# What somebody deletes or changes comes back; a killed operator changes nothing.
deployment=$(field workflow/hello '.status.functions[?(@.name=="greeter")].workload')
restart_operator() { kubectl -n cwasi-system delete pod -l app=cwasi-operator --grace-period=0 --force >/dev/null 2>&1; }
restart_operator
k delete "$deployment" >/dev/null
wait_for "$WAIT_SECONDS" "a deleted Deployment is made again" k get "$deployment"
wait_ready hello

# The API refuses what the schema refuses, with the remedy.
refused() { k apply --dry-run=server -f - 2>&1 && fail "accepted: $1"; }
contains "a function with two sources" 'a function has either `image` or `module`' \
    "$(hello auto | sed 's#image: localhost/hello:1#&\n      module: a.wasm#' | refused "two sources")"
contains "a scaled primary" '`scale` needs role: secondary' \
    "$(hello auto | sed 's#args: .*#scale: {max: 3}#' | refused "a scaled primary")"
contains "kubectl explain" 'HorizontalPodAutoscaler' "$(k explain workflow.spec.functions.scale.max)"

# What only the operator knows is a condition; nothing that runs is touched.
hello auto | sed 's#image: localhost/hello:1#module: greeter.wasm#' | apply -
wait_reason hello Degraded Invalid
contains "the remedy" 'cwasi image build --push' "$(condition hello Degraded message)"
wait_field "$deployment" .status.readyReplicas 1
hello auto | sed '0,/localhost.hello:1/s##localhost/nothing:1#' | apply -
explain() { k describe workflows >&2; }
image_is_missing() { [[ $(condition hello Degraded reason) == *Image* ]]; }
wait_for "$WAIT_SECONDS" "a missing image is a condition" image_is_missing
contains "the function and the remedy" '^greeter: .*check `image`' "$(condition hello Degraded message)"
equals "pods of the old image that still serve" 1 "$(field "$deployment" .status.availableReplicas)"
explain() { :; }

# A name that something else has stays that one's.
k create service clusterip web-server --tcp 80:8080 >/dev/null
apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: web}
spec:
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      http: 8080
      scale: {min: 1, max: 3}
      podTemplate: {spec: {containers: [{name: server, command: [/server.wasm]}]}}
YAML
wait_reason web Degraded NameTaken
k delete service web-server >/dev/null
wait_ready web
equals "the endpoint" http://web-server:80 "$(field workflow/web '.status.functions[0].endpoint')"
k get horizontalpodautoscaler web-server >/dev/null
# Replicas are the autoscaler's, or another's: the operator leaves them.
k scale deployment/web-server --replicas 2 >/dev/null
wait_field deployment/web-server .status.readyReplicas 2

# Requests through the Service, each on a connection of its own: an update and pods that go lose none.
ANSWERS=/var/log/web.answers
answers() { on node1 sh -c "wc -l <$ANSWERS"; }
have_answered() { [ "$(answers)" -gt "$1" ]; }
wait_answers() { wait_for "$WAIT_SECONDS" "100 further requests are answered" have_answered $(($(answers) + 100)); }
pods_are() { [ "$(k get pods -l cwasi.dev/workflow=web -o name | wc -l)" = "$1" ]; }
# shellcheck disable=SC2016 # the node's shell expands it
on node1 sh -c 'while [ ! -e "$1.stop" ]; do
        curl --silent --output /dev/null --write-out "%{http_code}\n" --max-time 30 --data hello "$2"
    done >"$1"' client "$ANSWERS" "http://$(field service/web-server .spec.clusterIP)/" &
client=$!
wait_for 30 "requests are answered" have_answered 0
wait_answers
k rollout restart deployment/web-server >/dev/null
wait_rollout deployment/web-server
wait_for 60 "the old pods are gone" pods_are 2
k scale deployment/web-server --replicas 1 >/dev/null
wait_for 60 "one pod is left" pods_are 1
wait_answers
on node1 touch "$ANSWERS.stop"
wait "$client"
equals "how requests ended" 200 "$(on node1 sort -u "$ANSWERS" | paste -sd ' ')"
say "      $(answers) requests through a Service during an update and with one pod less"

# Deleting a Workflow deletes all of it.
k delete workflow hello port web wide >/dev/null
for kind in deployments jobs services horizontalpodautoscalers pods; do
    wait_for 60 "no $kind are left" gone "$kind" -l cwasi.dev/workflow
done
# Of the leader or of the other one.
contains "the operator's metrics" '^cwasi_operator_leader [01]$' "$(
    kubectl get --raw "/api/v1/namespaces/cwasi-system/services/cwasi-operator:metrics/proxy/metrics"
)"
kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" --wait=false >/dev/null
