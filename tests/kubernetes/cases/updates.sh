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

calling_pod caller node1
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
