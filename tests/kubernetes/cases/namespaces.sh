# A function of one namespace is refused by those of another, unless they allow it, even on one node. It is never linked
# into a function of another namespace, unless the node's trust_groups says so.
OTHER=$NAMESPACE-other
kubectl create namespace "$OTHER" >/dev/null

# secondary NAME ANNOTATIONS: a pod with the function `server` in the case's namespace, on node1
secondary() {
    apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, annotations: {cwasi.role: secondary, cwasi.function: $1$2}}
spec:
  runtimeClassName: cwasi
  nodeName: node1
  terminationGracePeriodSeconds: 5
  containers: [{name: server, image: "localhost/guests:test", command: [/server.wasm]}]
YAML
    wait_field "pod/$1" .status.phase Running
}

# called NAMESPACE NAME TARGET: what a primary in a namespace reads that calls a target
called() {
    kubectl -n "$1" apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $2}
spec:
  runtimeClassName: cwasi
  nodeName: node1
  restartPolicy: Never
  containers: [{name: main, image: "localhost/guests:test", command: [/probe.wasm, call, $3, hello]}]
YAML
    wait_for "$WAIT_SECONDS" "$2 in $1 ends" pod_ended "$1" "$2"
    kubectl -n "$1" logs "$2"
}
pod_ended() { [[ $(kubectl -n "$1" get pod "$2" -o 'jsonpath={.status.phase}') =~ Succeeded|Failed ]]; }

secondary private ""
secondary public ", cwasi.allow: $OTHER/*"
contains "a call within the namespace" '^hello' "$(called "$NAMESPACE" own private)"
contains "a call by the name alone from another namespace" 'no such function|not found' "$(called "$OTHER" alone private)"
contains "a call from another namespace" 'takes calls from its own namespace only' "$(called "$OTHER" refused "$NAMESPACE/private")"
contains "an allowed call from another namespace" '^hello' "$(called "$OTHER" allowed "$NAMESPACE/public")"

# linked NAME: a primary of the other namespace that calls the function `member` in its own VM or not at all
secondary member ", cwasi.trust: city"
linked() {
    kubectl -n "$OTHER" apply -f - >/dev/null <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, annotations: {cwasi.trust: city, cwasi.embed: member, cwasi.mode: embedded}}
spec:
  runtimeClassName: cwasi
  nodeName: node1
  restartPolicy: Never
  containers: [{name: main, image: "localhost/guests:test", command: [/probe.wasm, call, member, hello]}]
YAML
}
why() { kubectl -n "$OTHER" describe pod "$1"; kubectl -n "$OTHER" logs "$1" 2>/dev/null; }
is_refused() { [[ $(why "$1") == *"trust_groups does not list \`city\`"* ]]; }
linked stranger
explain() { why stranger >&2; }
wait_for "$WAIT_SECONDS" "linking across namespaces is refused" is_refused stranger
configure_nodes 'trust_groups = ["city"]'
linked friend
explain() { why friend >&2; }
wait_for "$WAIT_SECONDS" "friend ends" pod_ended "$OTHER" friend
contains "a function linked across namespaces" '^hello' "$(kubectl -n "$OTHER" logs friend)"
explain() { :; }
configure_nodes ''
remove_namespaces "$OTHER"
