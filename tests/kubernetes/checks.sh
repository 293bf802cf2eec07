# What the cases check with. Sourced by scripts/kubernetes.sh; a case runs with set -e in a namespace of its own.

# kubectl in the case's namespace
k() { kubectl --namespace "$NAMESPACE" "$@"; }

apply() { k apply -f "$@" >/dev/null; }

fail() { die "case $NAMESPACE: $*"; }

# equals WHAT EXPECTED ACTUAL
equals() { [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"; }

# contains WHAT PATTERN TEXT
contains() { grep -qE -- "$2" <<<"$3" || fail "$1: nothing matches '$2' in: $3"; }

# field OBJECT JSONPATH
field() { k get "$1" -o "jsonpath={$2}"; }

has_field() { [ "$(field "$1" "$2")" = "$3" ]; }

# wait_field OBJECT JSONPATH VALUE [SECONDS]
wait_field() {
    explain() { k describe "$1" >&2 || true; }
    wait_for "${4:-$WAIT_SECONDS}" "$1 has $2 = $3" has_field "$1" "$2" "$3"
    explain() { :; }
}

wait_job() {
    explain() { k describe pods >&2; k logs "job/$1" --all-containers >&2 || true; }
    wait_for "${2:-$WAIT_SECONDS}" "the job $1 completes" has_field "job/$1" .status.succeeded 1
    explain() { :; }
}

wait_rollout() {
    explain() { k describe pods >&2; }
    wait_for "${2:-$WAIT_SECONDS}" "$1 is rolled out" k rollout status "$1" --timeout=1s
    explain() { :; }
}

# serving_pods REPLICAS PLACEMENT: the Deployment `server`, whose pods have this line of their spec. An update starts a
# new pod first, and then ends an old one.
serving_pods() {
    apply - <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: $1
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {cwasi.role: secondary}}
    spec:
      runtimeClassName: cwasi
      $2
      terminationGracePeriodSeconds: 10
      containers:
        - name: server
          image: localhost/guests:test
          command: [/server.wasm]
          volumeMounts: [{name: log, mountPath: /log}]
      volumes: [{name: log, emptyDir: {}}]
YAML
    wait_rollout deployment/server
}

# calling_pod NAME NODE [server]: a pod on a node, whose function calls `server` again and again until there is
# /shared/stop, and writes down how each call ended. With the third word, `server` is in the same pod.
calling_pod() {
    local resources='resources: {requests: {memory: 64Mi}, limits: {memory: 64Mi}}' annotations='' server=''
    if [ -n "${3:-}" ]; then
        annotations='cwasi.role.server: secondary'
        server='{name: server, image: "localhost/guests:test", command: [/server.wasm], '
        server+="$resources, volumeMounts: [{name: shared, mountPath: /log}]},"
    fi
    apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, annotations: {$annotations}}
spec:
  runtimeClassName: cwasi
  nodeName: $2
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  volumes: [{name: shared, emptyDir: {}}]
  containers: [
    $server
    {name: caller, image: "localhost/guests:test", command: [/probe.wasm, number, server, /shared], $resources,
     volumeMounts: [{name: shared, mountPath: /shared}]},
    {name: shell, image: "localhost/busybox:test", $resources, volumeMounts: [{name: shared, mountPath: /shared}],
     command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait \$!; done"]}]
YAML
    wait_field "pod/$1" .status.phase Running
}

# ended POD: how many calls of a calling pod have ended
ended() { k exec "$1" -c shell -- sh -c 'wc -l </shared/ended'; }

have_ended() { [ "$(ended "$1")" -gt "$2" ]; }

# wait_calls POD CALLS SECONDS: more than so many further calls end
wait_calls() {
    local before
    before=$(ended "$1")
    wait_for "$3" "more than $2 further calls of $1 end" have_ended "$1" $((before + $2))
}

failed_calls() { k exec "$1" -c shell -- sh -c 'grep -v " ok$" /shared/ended || true'; }

gone() { [ -z "$(k get "$@" -o name 2>/dev/null)" ]; }

# Deletes and waits until nothing of it is there, in the time that Kubernetes gives it and a bit.
delete() {
    k delete "$@" --wait=false >/dev/null
    explain() { k get pods -o wide >&2; }
    wait_for 60 "deleted: $*" gone "$@"
    explain() { :; }
}

remove_namespaces() {
    kubectl delete namespace "$@" --ignore-not-found --wait=false >/dev/null
}
