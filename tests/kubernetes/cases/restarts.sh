# The kubelet and containerd restart while a function serves: it goes on, no call is lost, and it ends in time afterwards.
for node in node1 node2; do
    calling_pod "$node" "$node" server
done
for pod in node1 node2; do
    for restarted in "kubelet TERM" "containerd TERM" "containerd KILL"; do
        # shellcheck disable=SC2086 # service and signal
        restart_service "$pod" $restarted
        wait_for "$WAIT_SECONDS" "exec works after $restarted" k exec "$pod" -c shell -- true
        wait_for "$WAIT_SECONDS" "$pod is ready" kubectl wait --for=condition=Ready "node/$pod" --timeout=1s
        wait_calls "$pod" 50 60
    done
    failed=$(failed_calls "$pod")
    equals "calls that failed" "" "$failed"
    equals "restarts of $pod" "0 0 0" "$(field "pod/$pod" '.status.containerStatuses[*].restartCount')"
    delete pod "$pod"
done
