# A native sidecar beside a function: exec, cp, an exec probe; and what exec says for a function.
apply - <<'YAML'
apiVersion: v1
kind: Pod
metadata:
  name: both
  annotations: {cwasi.role.server: secondary}
spec:
  runtimeClassName: cwasi
  terminationGracePeriodSeconds: 5
  containers:
    - {name: server, image: "localhost/guests:test", command: [/server.wasm]}
    - name: shell
      image: localhost/busybox:test
      command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
      readinessProbe: {exec: {command: [/bin/test, -e, /ready]}, periodSeconds: 1}
      lifecycle: {postStart: {exec: {command: [/bin/sh, -c, "echo started > /hook"]}}}
YAML
wait_field pod/both .status.phase Running
equals "exec" "42" "$(k exec both -c shell -- sh -c 'echo $((6 * 7))')"
equals "lifecycle hook" started "$(k exec both -c shell -- cat /hook)"
code=0
k exec both -c shell -- sh -c 'exit 9' >/dev/null 2>&1 || code=$?
equals "exit code of exec" 9 "$code"
equals "stdin of exec" "a line" "$(echo "a line" | k exec -i both -c shell -- cat)"

# The probe decides about the pod, in both directions.
equals "ready before its probe succeeds" False "$(field pod/both '.status.conditions[?(@.type=="Ready")].status')"
k exec both -c shell -- touch /ready
wait_field pod/both '.status.conditions[?(@.type=="Ready")].status' True
k exec both -c shell -- rm /ready
wait_field pod/both '.status.conditions[?(@.type=="Ready")].status' False

head -c 3000000 /dev/urandom >"$CLUSTER_DIR/copy"
k cp "$CLUSTER_DIR/copy" both:/copy -c shell
k cp both:/copy "$CLUSTER_DIR/copy-back" -c shell >/dev/null
cmp "$CLUSTER_DIR/copy" "$CLUSTER_DIR/copy-back" || fail "kubectl cp changed a file"

text=$(k exec both -c server -- ls 2>&1) && fail "exec in a function succeeded"
contains "exec in a function" 'kubectl debug|native' "$text"
delete pod both
