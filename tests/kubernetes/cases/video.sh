# The video workflow in one pod, in two pods of one node and in two pods of two nodes: the same results everywhere, and
# those of the functions called one after the other in one process.
DEMO_DIR=$STATE_DIR/demo
EMBEDDED=localhost/fn-utils:demo

expected=$(cd "$DEMO_DIR/out-sequential" && sha256sum -- *)

# manifest NAME: with the digest of the module to embed
manifest() {
    local digest
    digest=$(on node1 ctr -n k8s.io images ls "name==$EMBEDDED" | awk 'NR == 2 { print $3 }')
    "$PROGRAMS/kubectl" kustomize "$CHECKOUT/deploy/kubernetes/video/$1" | sed "s/@DIGEST/@$digest/"
}

for node in node1 node2; do
    import_images "$node" "${VIDEO_NAMES[@]}"
done
# Functions of different nodes meet in Redis.
kubectl apply -f "$CHECKOUT/deploy/kubernetes/redis.yaml" >/dev/null
configure_nodes 'redis_url = "redis://:change-me@10.96.0.63:6379"'
wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s

declare -A nodes=([one-pod]=1 [one-node]=1 [two-nodes]=2)
for where in one-pod one-node two-nodes; do
    started=$SECONDS
    manifest "$where" | apply -
    wait_job vehicle-paths 300
    equals "results in $where" "$expected" "$(k logs job/vehicle-paths -c results)"
    equals "number of nodes in $where" "${nodes[$where]}" \
        "$(k get pods -o 'jsonpath={range .items[*]}{.spec.nodeName}{"\n"}{end}' | sort -u | wc -l)"
    say "      $where: $((SECONDS - started)) s"
    manifest "$where" | k delete -f - --wait=false >/dev/null
    wait_for 60 "all pods are gone" gone pods
done
