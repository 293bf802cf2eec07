# A rolling update under load loses no call; scaling from 1 to 5 to 0.
apply - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: 2
  # A new pod first, then an old one less.
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {cwasi.role: secondary}}
    spec:
      runtimeClassName: cwasi
      nodeSelector: {kubernetes.io/hostname: node1}
      terminationGracePeriodSeconds: 10
      containers:
        - name: server
          image: localhost/guests:test
          command: [/server.wasm]
          volumeMounts: [{name: log, mountPath: /log}]
      volumes: [{name: log, emptyDir: {}}]
YAML
wait_rollout deployment/server

# Calls one after the other until there is /shared/stop, and writes down how each ended.
apply - <<'YAML'
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  runtimeClassName: cwasi
  nodeSelector: {kubernetes.io/hostname: node1}
  restartPolicy: Never
  terminationGracePeriodSeconds: 5
  containers:
    - name: caller
      image: localhost/guests:test
      command: [/probe.wasm, number, server, /shared]
      volumeMounts: [{name: shared, mountPath: /shared}]
    - name: shell
      image: localhost/busybox:test
      command: [/bin/sh, -c, "trap 'exit 0' TERM; while :; do sleep 1 & wait $!; done"]
      volumeMounts: [{name: shared, mountPath: /shared}]
  volumes: [{name: shared, emptyDir: {}}]
YAML
wait_field pod/caller .status.phase Running

wait_calls caller 200 "$WAIT_SECONDS"
for update in one two; do
    k set env deployment/server "UPDATE=$update" >/dev/null
    wait_rollout deployment/server
    wait_calls caller 200 "$WAIT_SECONDS"
done
k exec caller -c shell -- touch /shared/stop
wait_field pod/caller '.status.containerStatuses[?(@.name=="caller")].state.terminated.exitCode' 0
failed=$(failed_calls caller)
equals "calls that failed during two rolling updates" "" "$failed"
say "      $(ended caller) calls during two rolling updates"
delete pod caller

k scale deployment/server --replicas 1 >/dev/null
for replicas in 5 0; do
    k scale deployment/server --replicas "$replicas" >/dev/null
    wait_field deployment/server .status.readyReplicas "${replicas/#0/}"
done
wait_for 60 "all pods are gone" gone pods
delete deployment server
