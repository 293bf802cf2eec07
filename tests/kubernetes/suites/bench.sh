# Starts of the functions of workflows/functions as pods, beside the same functions as native images under runc, on
# node1: the operator paper's Figures 4 and 5. Only by its name. REPEATS: how often each starts on each side. Functions
# are optimized on both sides; so is the runtime with PROFILE=release. user-manager has no database here, and is left
# out.

REPEATS=${REPEATS:-10}
OUT=$TARGET_DIR/bench-kubernetes
TEXT_PORT=8000
QUERIES=(
    'aes?length=1000&iterations=100' 'float-operation?n=10000000' 'linear-equations?unknowns=128' 'matmul?dimensions=50'
    'fuzzysearch?search=Hamlet' 'n-body' 'prime-numbers?n=100' 'whatlang?text=The+quick+brown+fox'
)
for query in "${QUERIES[@]}"; do
    import_images node1 "function-${query%%\?*}-ours" "function-${query%%\?*}-native"
done

# The text of fuzzysearch, on the node's own address.
mkdir -p "$CLUSTER_DIR/text"
for line in $(seq 2000); do echo "Line $line: words, words, words"; done >"$CLUSTER_DIR/text/play.txt"
echo 'Good night, sweet prince Hamlet' >>"$CLUSTER_DIR/text/play.txt"
address=$(kubectl get node node1 -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
on node1 "$STATE_DIR/busybox/bin/busybox" httpd -f -p "$address:$TEXT_PORT" -h "$CLUSTER_DIR/text" &
wait_for 30 "the text is served" on node1 curl --silent --fail --output /dev/null "http://$address:$TEXT_PORT/play.txt"

in_network node1 env "KUBECONFIG=$CLUSTER_DIR/kubeconfig" \
    "$TARGET_DIR/debug/cwasi-bench-kubernetes" --namespace "$NAMESPACE" --node node1 --repeats "$REPEATS" \
    --env "TEXT_URL=http://$address:$TEXT_PORT/play.txt" --network "$address:$TEXT_PORT" --out "$OUT" "${QUERIES[@]}"
