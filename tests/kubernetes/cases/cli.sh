# `cwasi VERB --kube` from outside of the cluster: lists, logs, calls, explains, traces and removes a workflow.
install_operator

# cwasi VERB ARGUMENT…
cwasi() { in_network control env KUBECONFIG="${KUBECONFIG:-$CLUSTER_DIR/kubeconfig}" \
    "$STATIC_PROGRAMS/$PROFILE/cwasi" "$1" --kube --namespace "$NAMESPACE" "${@:2}"; }

# ends CODE VERB ARGUMENT…: with this exit code; prints stderr
ends() {
    local code=0 expected=$1 said
    shift
    said=$(cwasi "$@" 2>&1 >/dev/null) || code=$?
    equals "exit code of cwasi $*, which says $said" "$expected" "$code"
    printf '%s' "$said"
}

apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: shop}
spec:
  placement: {policy: spread}
  functions:
    # Its module has another name, which is not that by which others call it.
    welcome:
      image: localhost/hello:1
      role: secondary
      replicas: 2
      podTemplate: {spec: {containers: [{name: welcome, command: [/greeter.wasm]}]}}
    echo:
      image: localhost/guests:test
      role: secondary
      scale: {min: 1, max: 3}
      podTemplate: {spec: {containers: [{name: echo, command: [/server.wasm]}]}}
    broken:
      image: localhost/nothing:1
      role: secondary
YAML
workflow_lists() { cwasi ps shop | grep -qE "$1"; }
explain() { cwasi ps shop >&2; k describe pods >&2; }
wait_for "$WAIT_SECONDS" "welcome runs on both nodes" \
    workflow_lists '^shop +welcome +Deployment/shop-welcome +2/2 +node1,node2 +sha256:[0-9a-f]{12} '
wait_for "$WAIT_SECONDS" "echo runs" workflow_lists '^shop +echo +Deployment/shop-echo +1/1 +node[12] '
wait_for "$WAIT_SECONDS" "a missing image needs a person" workflow_lists '^shop: .*Image.*: broken: .*check `image`'
explain() { :; }
equals "functions in JSON" '"echo" "welcome"' \
    "$(cwasi ps --json | grep -oE '"function": "(echo|welcome)"' | cut -d ' ' -f 2 | sort | paste -sd ' ')"

equals "the response of a call" 'Hello, Ada!' "$(cwasi invoke welcome --data Ada)"
payload=$CLUSTER_DIR/payload
head -c 300000 /dev/urandom >"$payload"
cwasi invoke "$NAMESPACE/echo" --data - <"$payload" >"$payload.response"
cmp "$payload" "$payload.response" || fail "a binary payload came back otherwise"
contains "the mode" 'local \(callee on this host\)' "$(cwasi invoke --verbose welcome --data Ada 2>&1 >/dev/null)"
contains "JSON" '"payload": "Hello, Ada!"' "$(cwasi invoke --json welcome --data Ada)"
contains "an unknown function" 'has a function welcom; did you mean welcome\?' "$(ends 66 invoke welcom)"
contains "a call from another namespace" 'takes calls from its own namespace only' \
    "$(NAMESPACE=default; ends 77 invoke cli/echo)"

contains "why a call is local" '^gateway -> welcome: local' "$(cwasi explain gateway welcome)"
explained=$(cwasi explain welcome echo || true)
contains "a function explains itself" '^welcome -> echo: ' "$explained"
contains "what its Workflow says of the callee" '^  scale of echo: 1 to 3 pods on a cluster, at 80 %' "$explained"
contains "the same in JSON" '"max": 3' "$(cwasi explain --json welcome echo || true)"
ends 1 explain welcome nobody >/dev/null

cwasi invoke --trace welcome --data Ada >/dev/null 2>&1
has_trace() { cwasi trace | grep -q ' 2 .*gateway calls welcome'; }
explain() { cwasi trace >&2; }
wait_for 30 "the trace of a call is complete" has_trace
explain() { :; }
contains "a trace" 'gateway calls welcome' "$(cwasi trace last)"
ends 66 trace ffffffff >/dev/null

# Line for line those of the pods.
contains "logs of both pods" '^shop-welcome-[-a-z0-9]+/welcome \| .*greeting Ada' "$(cwasi logs shop/welcome)"
contains "logs in JSON" '"function":"welcome","time":"20.*"text":"greeting Ada' "$(cwasi logs shop/welcome --json)"

# With the rights of the user of the context.
k create serviceaccount viewer >/dev/null
sed "s#token: .*}}#token: $(k create token viewer)}}#" "$CLUSTER_DIR/kubeconfig" >"$CLUSTER_DIR/viewer"
contains "a user without rights" 'does not let you `list workflows.cwasi.dev` in namespace cli' \
    "$(KUBECONFIG=$CLUSTER_DIR/viewer ends 77 ps)"
k create role viewer --verb list --resource workflows.cwasi.dev,pods >/dev/null
k create rolebinding viewer --role viewer --serviceaccount "$NAMESPACE:viewer" >/dev/null
contains "a user who may list" '^shop +welcome' "$(KUBECONFIG=$CLUSTER_DIR/viewer cwasi ps)"
contains "a user who may not reach nodes" 'does not let you `list pods` in namespace cwasi-system' \
    "$(KUBECONFIG=$CLUSTER_DIR/viewer ends 77 invoke welcome)"

equals "what rm removed" shop "$(cwasi rm shop 2>/dev/null)"
equals "pods that are left" '' "$(k get pods -l cwasi.dev/workflow=shop -o name)"
contains "a removed workflow" 'has no workflow shop' "$(ends 66 rm shop)"
kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" --wait=false >/dev/null
