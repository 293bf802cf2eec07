# Starts of the functions of workflows/functions as pods, beside the same functions as native images under runc, on
# node1: the operator paper's Figures 4 and 5. Only by its name. REPEATS: how often each starts on each side. Functions
# are optimized on both sides; so is the runtime with PROFILE=release. user-manager posts to a CGI program in place of a
# database.

REPEATS=${REPEATS:-10}
OUT=$TARGET_DIR/bench-kubernetes
HTTP_PORT=8000
QUERIES=(
    'aes?length=1000&iterations=100' 'float-operation?n=10000000' 'linear-equations?unknowns=128' 'matmul?dimensions=50'
    'fuzzysearch?search=Hamlet' 'n-body' 'prime-numbers?n=100' 'whatlang?text=The+quick+brown+fox'
    'user-manager?entries=1'
)
for query in "${QUERIES[@]}"; do
    import_images node1 "function-${query%%\?*}-ours" "function-${query%%\?*}-native"
done

# The text of fuzzysearch, and what takes the persons of user-manager, on the node's own address.
mkdir -p "$CLUSTER_DIR/web/cgi-bin"
for line in $(seq 2000); do echo "Line $line: words, words, words"; done >"$CLUSTER_DIR/web/play.txt"
echo 'Good night, sweet prince Hamlet' >>"$CLUSTER_DIR/web/play.txt"
cat >"$CLUSTER_DIR/web/cgi-bin/users" <<'PROGRAM'
#!/bin/sh
cat >/dev/null
printf 'Status: 201 Created\r\ncontent-length: 0\r\n\r\n'
PROGRAM
chmod 755 "$CLUSTER_DIR/web/cgi-bin/users"
address=$(kubectl get node node1 -o 'jsonpath={.status.addresses[?(@.type=="InternalIP")].address}')
web=http://$address:$HTTP_PORT
on node1 "$STATE_DIR/busybox/bin/busybox" httpd -f -p "$address:$HTTP_PORT" -h "$CLUSTER_DIR/web" &
wait_for 30 "the text is served" on node1 curl --silent --fail --output /dev/null "$web/play.txt"
wait_for 30 "persons are taken" on node1 curl --silent --fail --output /dev/null --data '{}' "$web/cgi-bin/users"

# When tasks start, in nanoseconds: a kubelet looks once a second.
on node1 ctr events >"$CLUSTER_DIR/events" &

in_network node1 env "KUBECONFIG=$CLUSTER_DIR/kubeconfig" \
    "$TARGET_DIR/debug/cwasi-bench-kubernetes" --namespace "$NAMESPACE" --node node1 --repeats "$REPEATS" \
    --env "TEXT_URL=$web/play.txt" --env "USERS_URL=$web/cgi-bin/users" --network "$address:$HTTP_PORT" \
    --events "$CLUSTER_DIR/events" --out "$OUT" "${QUERIES[@]}"
