# The optional metrics of each node: the calls of a function, in its pod's namespace, from the pod that Prometheus asks.
kubectl apply -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" >/dev/null
explain() {
    kubectl -n cwasi-system describe pods -l app=cwasi-metrics >&2
    kubectl -n cwasi-system logs -l app=cwasi-metrics >&2
}
wait_for "$WAIT_SECONDS" "the metrics are served" \
    kubectl -n cwasi-system rollout status daemonset/cwasi-metrics --timeout=1s
explain() { :; }

apply "$CHECKOUT/deploy/kubernetes/hello/one-pod.yaml"
wait_job hello
node=$(k get pods -l job-name=hello -o 'jsonpath={.items[0].spec.nodeName}')
pod=$(kubectl -n cwasi-system get pods -l app=cwasi-metrics --field-selector "spec.nodeName=$node" \
    -o 'jsonpath={.items[0].metadata.name}')
numbers() { kubectl get --raw "/api/v1/namespaces/cwasi-system/pods/$pod:9477/proxy/metrics"; }
is_counted() {
    numbers | grep '^cwasi_calls_total{' | grep "pod_namespace=\"$NAMESPACE\"" | grep 'callee="greeter"' | grep -q ' 2$'
}
explain() { numbers >&2; }
wait_for 30 "the two calls of hello are counted" is_counted
explain() { :; }
contains "the metrics" '^# EOF$' "$(numbers)"
status() { kubectl -n cwasi-system get pod "$pod" -o "jsonpath={$1}"; }
equals "its restarts" 0 "$(status '.status.containerStatuses[0].restartCount')"
delete job hello
kubectl delete -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" >/dev/null
