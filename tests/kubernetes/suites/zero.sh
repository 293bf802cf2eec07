# Functions started on demand (`scale.min: 0`), with a real KEDA: from zero to the first answer, back to zero after the
# cooldown, no call lost when the last pod goes under load, and what is said without KEDA. Only by its name, because
# KEDA's build (images.sh) takes 15 minutes. ROUNDS: how often it goes from zero to the first answer.

ROUNDS=${ROUNDS:-10}
GATEWAY=127.0.0.1:8099
CALL="curl --silent --fail --max-time 30 --output /dev/null --data hello http://$GATEWAY/function/server"

import_images node1 keda
import_images node2 keda
for node in node1 node2; do
    import_images "$node" redis
done
kubectl apply -f "$CHECKOUT/deploy/kubernetes/redis.yaml" >/dev/null
configure_nodes 'redis_url = "redis://:change-me@10.96.0.63:6379"'
wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s

kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
wait_for "$WAIT_SECONDS" "the API knows workflows" kubectl get workflows -A
kubectl -n cwasi-system create secret generic cwasi-redis --from-literal=url=redis://:change-me@10.96.0.63:6379 >/dev/null
kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null
# This cluster has no name server.
kubectl -n cwasi-system set env deployment/cwasi-operator \
    "CWASI_SCALER_ADDRESS=$(kubectl -n cwasi-system get service cwasi-operator -o 'jsonpath={.spec.clusterIP}'):9091" >/dev/null
wait_for "$WAIT_SECONDS" "the operator runs" \
    kubectl -n cwasi-system rollout status deployment/cwasi-operator --timeout=1s

explain() {
    k describe workflows,pods >&2
    kubectl -n cwasi-system logs deployment/cwasi-operator >&2
    kubectl -n keda logs deployment/keda-operator --tail 40 >&2
}

apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: zero}
spec:
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      http: gateway
      scale: {min: 0, max: 3, cooldown: 5s}
      podTemplate:
        spec:
          nodeSelector: {kubernetes.io/hostname: node1}
          terminationGracePeriodSeconds: 10
          volumes: [{name: log, emptyDir: {}}]
          containers: [{name: server, command: [/server.wasm], volumeMounts: [{name: log, mountPath: /log}]}]
YAML
scales() { field workflow/zero '.status.conditions[?(@.type=="ScalesToZero")].reason'; }
has_scales() { [ "$(scales)" = "$1" ]; }
wait_for "$WAIT_SECONDS" "without KEDA the status says so" has_scales NoKeda
wait_field deployment/zero-server .status.readyReplicas 1

say "      KEDA $KEDA_VERSION"
kubectl apply --server-side -f "$KEDA_CRDS" >/dev/null
kubectl create namespace keda >/dev/null
openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=keda -keyout "$CLUSTER_DIR/tls.key" -out "$CLUSTER_DIR/tls.crt" 2>/dev/null
kubectl -n keda create secret generic certs --from-file=tls.key="$CLUSTER_DIR/tls.key" \
    --from-file=tls.crt="$CLUSTER_DIR/tls.crt" --from-file=ca.crt="$CLUSTER_DIR/tls.crt" >/dev/null
kubectl create clusterrolebinding keda --clusterrole cluster-admin --serviceaccount keda:default >/dev/null
kubectl apply -f - >/dev/null <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: keda-operator, namespace: keda}
spec:
  selector: {matchLabels: {app: keda-operator}}
  template:
    metadata: {labels: {app: keda-operator}}
    spec:
      volumes: [{name: certs, secret: {secretName: certs}}]
      containers:
        - name: keda
          image: localhost/keda:test
          args: [--zap-log-level=info, --zap-encoder=console]
          env:
            - {name: WATCH_NAMESPACE, value: ""}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: OPERATOR_NAME, value: keda-operator}
          readinessProbe: {httpGet: {path: /readyz, port: 8081}, periodSeconds: 2}
          volumeMounts: [{name: certs, mountPath: /certs}]
YAML
wait_for "$WAIT_SECONDS" "KEDA runs" kubectl -n keda rollout status deployment/keda-operator --timeout=1s
# The operator looks for its kinds every 30 seconds.
wait_for "$WAIT_SECONDS" "functions scale to zero" has_scales Keda
k get scaledobject zero-server >/dev/null

at_zero() { [ "$(field deployment/zero-server .spec.replicas)" = 0 ] && gone pods -l cwasi.dev/function=server; }
wait_for 120 "the function has no pod after its cooldown" at_zero

on node1 sh -c "exec $STATIC_PROGRAMS/$PROFILE/cwasi gateway --namespace k8s.io --pod-namespace $NAMESPACE --listen $GATEWAY >/var/log/gateway.log 2>&1" &
wait_for 30 "the gateway listens" on node1 curl --silent --fail "http://$GATEWAY/healthz"
seconds=()
for _ in $(seq "$ROUNDS"); do
    wait_for 120 "the function has no pod" at_zero
    seconds+=("$(on node1 $CALL --write-out '%{time_total}')")
done
mapfile -t seconds < <(printf '%s\n' "${seconds[@]}" | sort -n)
say "      from zero to the first answer: p50 ${seconds[$((ROUNDS / 2))]} s, longest ${seconds[-1]} s, of $ROUNDS"

# The last pod goes under load, again and again: calls wait, none is lost.
wait_for 120 "the function has no pod" at_zero
calling_pod caller node1
wait_calls caller 200 "$WAIT_SECONDS"
for _ in 1 2 3; do
    k scale deployment/zero-server --replicas 0 >/dev/null
    wait_for 60 "a pod runs again" has_field deployment/zero-server .status.readyReplicas 1
    wait_calls caller 200 "$WAIT_SECONDS"
done
k exec caller -c shell -- touch /shared/stop
wait_field pod/caller '.status.containerStatuses[?(@.name=="caller")].state.terminated.exitCode' 0
equals "calls that failed while the last pod went" "" "$(failed_calls caller)"
say "      $(ended caller) calls while the last pod went three times"
delete pod caller
wait_for 120 "the function has no pod after its cooldown" at_zero

# Redis is away: KEDA says that its trigger does not work, and the condition says the same.
kubectl -n cwasi-system scale deployment/redis --replicas 0 >/dev/null
wait_for "$WAIT_SECONDS" "the status says that the trigger fails" has_scales TriggerError
kubectl -n cwasi-system scale deployment/redis --replicas 1 >/dev/null
wait_for "$WAIT_SECONDS" "functions scale to zero again" has_scales Keda

# A function that is deleted is one that does not exist.
k delete workflow zero >/dev/null
sleep 2
status=$(on node1 curl --silent --output /dev/null --write-out '%{http_code}' --max-time 30 --data x "http://$GATEWAY/function/server")
equals "the status of a function that was deleted" 404 "$status"
kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" --wait=false >/dev/null
kubectl delete namespace keda --wait=false >/dev/null
