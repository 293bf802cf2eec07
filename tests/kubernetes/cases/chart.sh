# The chart: it takes over what the manifests have installed, runs operator, metrics and gateway, brings a new definition,
# restricts the operator to a namespace, and goes without taking Workflows with it.
"$CHECKOUT/scripts/chart.sh" check
source "$CHECKOUT/scripts/helm.sh"

chart=$CLUSTER_DIR/chart
rm -rf "$chart"
# Without links, because the definition is changed below.
cp -rL "$CHECKOUT/deploy/helm/cwasi" "$chart"
helm() { in_network control "$HELM" --kubeconfig "$CLUSTER_DIR/kubeconfig" --namespace cwasi-system "$@" >/dev/null; }
restarts() { on node1 cat /run/services/containerd.pid; }
containerd=$(restarts)

explain() {
    kubectl -n cwasi-system describe pods >&2
    kubectl -n cwasi-system logs -l app=cwasi-gateway --all-containers >&2
}
helm upgrade --install cwasi "$chart" --take-ownership --wait --timeout "${WAIT_SECONDS}s" \
    --set-string node.containerdRestart="$RESTART_CONTAINERD" --set metrics.enabled=true \
    --set gateway.enabled=true,gateway.allowAnonymous=true,gateway.namespace="$NAMESPACE" || { explain; fail "helm upgrade"; }
for object in daemonset/cwasi-install daemonset/cwasi-metrics daemonset/cwasi-gateway deployment/cwasi-operator; do
    wait_for "$WAIT_SECONDS" "$object is there" kubectl -n cwasi-system rollout status "$object" --timeout=1s
done
equals "containerd, whose configuration is as before" "$containerd" "$(restarts)"

# workflow NAMESPACE: one function that the gateway may call
workflow() {
    cat <<YAML
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: hello, namespace: $1}
spec:
  functions:
    greeter:
      image: localhost/hello:1
      role: secondary
      podTemplate:
        metadata: {annotations: {cwasi.http: gateway}}
        spec: {containers: [{name: greeter, command: [/greeter.wasm]}]}
YAML
}

workflow "$NAMESPACE" | kubectl apply -f - >/dev/null
explain() { k describe workflows >&2; k describe pods >&2; kubectl -n cwasi-system logs deployment/cwasi-operator >&2; }
wait_for "$WAIT_SECONDS" "the workflow is ready" k wait --for=condition=Ready workflow/hello --timeout=1s
node=$(k get pods -l cwasi.dev/workflow=hello -o 'jsonpath={.items[0].spec.nodeName}')
gateway=$(kubectl -n cwasi-system get pods -l app=cwasi-gateway --field-selector "spec.nodeName=$node" \
    -o 'jsonpath={.items[0].metadata.name}')
printf Ada >"$CLUSTER_DIR/body"
called=$(kubectl create -f "$CLUSTER_DIR/body" \
    --raw "/api/v1/namespaces/cwasi-system/pods/$gateway:8080/proxy/function/greeter")
equals "the answer through the gateway" 'Hello, Ada!' "$called"

# An upgrade brings a new definition, the operator another scope, and nodes a configuration, for which gateways wait.
sed -i 's/description: "Functions of WebAssembly/description: "New: functions of WebAssembly/' "$chart/files/crd.yaml"
helm upgrade cwasi "$chart" --reuse-values --wait --timeout "${WAIT_SECONDS}s" --set operator.namespace="$NAMESPACE" \
    --set-string node.config='log = "info"' || { explain; fail "another helm upgrade"; }
equals "the node's configuration" 'log = "info"' "$(on node1 tail -n 1 /etc/cwasi/config.toml)"
said=$(kubectl -n cwasi-system logs -l app=cwasi-gateway --container configuration)
equals "what gateways say that have waited for it" "" "$said"
explained() { kubectl explain workflow | grep -q 'New: functions'; }
wait_for 30 "the definition is the new one" explained
kubectl get clusterrole cwasi-operator >/dev/null 2>&1 && fail "the operator has its ClusterRole still"
k delete deployment -l cwasi.dev/workflow=hello >/dev/null
wait_for "$WAIT_SECONDS" "the restricted operator works" k rollout status deployment/hello-greeter --timeout=1s
workflow default | kubectl apply -f - >/dev/null
sleep 3
equals "what it makes in other namespaces" "" "$(kubectl -n default get deployments -o name)"
kubectl -n default delete workflow hello >/dev/null

helm uninstall cwasi --wait
field workflow/hello .metadata.name >/dev/null || fail "the Workflows went with the release"
kubectl -n cwasi-system get daemonset cwasi-install >/dev/null 2>&1 && fail "the release left its DaemonSet"
# As the other cases want it.
node_manifests | kubectl apply -f - >/dev/null
kubectl apply -f "$CHECKOUT/deploy/kubernetes/runtimeclass.yaml" -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
wait_for "$WAIT_SECONDS" "the runtime is installed" \
    kubectl -n cwasi-system rollout status daemonset/cwasi-install --timeout=1s
delete workflow hello
