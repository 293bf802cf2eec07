# KEDA on the test cluster: its operator and its metrics server, and what functions at zero need beside them. Sourced by
# scripts/kubernetes.sh, for the suites `zero` and `scale`.

# Built from their Go module with the Go that it names, which Debian's Go fetches.
KEDA_VERSION=$(sed -nE 's/^require github.com\/kedacore\/keda\/v2 (v[0-9.]+)$/\1/p' "$KUBERNETES_DIR/keda/go.mod")
KEDA_CRDS=$PROGRAMS/keda-crds
# `cwasi gateway` on node1, by `start_gateway`.
GATEWAY=127.0.0.1:8099
REDIS_ADDRESS=10.96.0.63
# In deploy/kubernetes/redis.yaml.
REDIS_PASSWORD=change-me

build_keda() {
    local folder=$STATE_DIR/kubernetes/go digest
    digest=$(go_digest "$KUBERNETES_DIR/keda")
    if [ "$(cat "$KEDA_CRDS/VERSION" 2>/dev/null)" != "$digest" ]; then
        unpack_for_kubernetes go
        say "building KEDA $KEDA_VERSION from its Go module: up to 15 minutes"
        (
            cd "$KUBERNETES_DIR/keda" || exit
            go_environment "$folder"
            export GOTOOLCHAIN=auto
            go build -trimpath -ldflags "-s -w" -o "$PROGRAMS/keda" github.com/kedacore/keda/v2/cmd/operator
            go build -trimpath -ldflags "-s -w" -o "$PROGRAMS/keda-adapter" github.com/kedacore/keda/v2/cmd/adapter
            rm -rf "$KEDA_CRDS"
            mkdir "$KEDA_CRDS"
            install -m 644 "$(go list -m -f '{{.Dir}}' github.com/kedacore/keda/v2)"/config/crd/bases/*.yaml "$KEDA_CRDS"
        )
        echo "$digest" >"$KEDA_CRDS/VERSION"
        remove_go_folder "$folder"
    fi
    image keda localhost/keda:test --file "$PROGRAMS/keda:/keda" --entrypoint /keda
    image keda-adapter localhost/keda-adapter:test --file "$PROGRAMS/keda-adapter:/keda-adapter" --entrypoint /keda-adapter
}

# Redis of the nodes, and the operator, which has it too.
prepare_on_demand() {
    local node url=redis://:$REDIS_PASSWORD@$REDIS_ADDRESS:6379 address
    for node in node1 node2; do
        import_images "$node" redis keda keda-adapter
    done
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/redis.yaml" >/dev/null
    configure_nodes "redis_url = \"$url\""
    wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
    wait_for "$WAIT_SECONDS" "the API knows workflows" kubectl get workflows -A
    present --namespace cwasi-system secret generic cwasi-redis --from-literal=url="$url"
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null
    # This cluster has no name server.
    address=$(address_of cwasi-system cwasi-operator)
    kubectl -n cwasi-system set env deployment/cwasi-operator "CWASI_SCALER_ADDRESS=$address:9091" >/dev/null
    wait_for "$WAIT_SECONDS" "the operator runs" \
        kubectl -n cwasi-system rollout status deployment/cwasi-operator --timeout=1s
}

# address_of NAMESPACE SERVICE
address_of() { kubectl -n "$1" get service "$2" -o 'jsonpath={.spec.clusterIP}'; }

# redis COMMAND…: asks the nodes' Redis
redis() {
    local root=$STATE_DIR/redis-7/usr
    on node1 env LD_LIBRARY_PATH="$(echo "$root"/lib/*-linux-gnu)" \
        "$root/bin/redis-cli" -h "$REDIS_ADDRESS" -a "$REDIS_PASSWORD" --no-auth-warning "$@"
}

start_gateway() {
    on node1 sh -c "echo \$\$ >/run/services/gateway.pid
        exec $STATIC_PROGRAMS/$PROFILE/cwasi gateway --namespace k8s.io --pod-namespace $NAMESPACE \
            --listen $GATEWAY >/var/log/gateway.log 2>&1" &
    wait_for 30 "the gateway listens" on node1 curl --silent --fail "http://$GATEWAY/healthz"
}

stop_gateway() {
    on node1 sh -c 'kill $(cat /run/services/gateway.pid)'
    wait_for 30 "the gateway has ended" on node1 sh -c '! kill -0 $(cat /run/services/gateway.pid) 2>/dev/null'
}

# KEDA's own manifests have more of it: cert-manager's or KEDA's certificates, limits, roles, webhooks.
install_keda() {
    local dns=keda-operator.keda.svc,DNS:keda-operator.keda.svc.cluster.local,DNS:keda-metrics-apiserver.keda.svc
    say "      KEDA $KEDA_VERSION"
    kubectl apply --server-side -f "$KEDA_CRDS" >/dev/null
    present namespace keda
    openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=keda -addext "subjectAltName=DNS:$dns" \
        -keyout "$CLUSTER_DIR/tls.key" -out "$CLUSTER_DIR/tls.crt" 2>/dev/null
    present --namespace keda secret generic certs --from-file=tls.key="$CLUSTER_DIR/tls.key" \
        --from-file=tls.crt="$CLUSTER_DIR/tls.crt" --from-file=ca.crt="$CLUSTER_DIR/tls.crt"
    present clusterrolebinding keda --clusterrole cluster-admin --serviceaccount keda:default
    keda_services | kubectl apply -f - >/dev/null
    keda_deployment keda-operator keda /readyz 8081 HTTP "--zap-log-level=info, --zap-encoder=console" |
        kubectl apply -f - >/dev/null
    wait_for "$WAIT_SECONDS" "KEDA runs" kubectl -n keda rollout status deployment/keda-operator --timeout=1s
    keda_deployment keda-metrics-apiserver keda-adapter /readyz 6443 HTTPS "--secure-port=6443, --cert-dir=/certs,
        --client-ca-file=/certs/ca.crt, --tls-cert-file=/certs/tls.crt, --tls-private-key-file=/certs/tls.key" |
        kubectl apply -f - >/dev/null
    explain() { kubectl get apiservice v1beta1.external.metrics.k8s.io -o yaml >&2; }
    wait_for "$WAIT_SECONDS" "KEDA's metrics server runs" \
        kubectl -n keda rollout status deployment/keda-metrics-apiserver --timeout=1s
    wait_for "$WAIT_SECONDS" "the API server serves KEDA's metrics" \
        kubectl wait --for=condition=Available apiservice/v1beta1.external.metrics.k8s.io --timeout=1s
    explain() { :; }
}

keda_services() {
    cat <<YAML
apiVersion: v1
kind: Service
metadata: {name: keda-operator, namespace: keda}
spec: {selector: {app: keda-operator}, ports: [{name: metricsservice, port: 9666}]}
---
apiVersion: v1
kind: Service
metadata: {name: keda-metrics-apiserver, namespace: keda}
spec: {selector: {app: keda-metrics-apiserver}, ports: [{name: https, port: 443, targetPort: 6443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  service: {name: keda-metrics-apiserver, namespace: keda}
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  caBundle: $(base64 --wrap=0 "$CLUSTER_DIR/tls.crt")
YAML
}

# keda_deployment NAME IMAGE PROBE PORT SCHEME ARGUMENTS
keda_deployment() {
    cat <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: $1, namespace: keda}
spec:
  selector: {matchLabels: {app: $1}}
  template:
    metadata: {labels: {app: $1}}
    spec:
      volumes: [{name: certs, secret: {secretName: certs}}]
      # This cluster has no name server.
      hostAliases: [{ip: $(address_of keda keda-operator), hostnames: [keda-operator.keda.svc.cluster.local]}]
      containers:
        - name: $2
          image: localhost/$2:test
          args: [$6]
          env:
            - {name: WATCH_NAMESPACE, value: ""}
            - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
            - {name: OPERATOR_NAME, value: keda-operator}
          readinessProbe: {httpGet: {path: $3, port: $4, scheme: $5}, periodSeconds: 2}
          volumeMounts: [{name: certs, mountPath: /certs}]
YAML
}

# Leaves the cluster as it was, so that another suite may follow. KEDA itself ends its ScaledObjects.
remove_keda() {
    kubectl delete -f "$KEDA_CRDS" --ignore-not-found --timeout=60s >/dev/null
    kubectl delete apiservice v1beta1.external.metrics.k8s.io >/dev/null
    kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" --wait=false >/dev/null
    kubectl delete namespace keda >/dev/null
}
