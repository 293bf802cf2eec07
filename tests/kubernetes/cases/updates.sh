# A rolling update under load loses no call; scaling from 1 to 5 to 0.
serving_pods 2 'nodeSelector: {kubernetes.io/hostname: node1}'

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
