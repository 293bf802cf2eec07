# Functions started on demand (`scale.min: 0`), with a real KEDA: from zero to the first answer, back to zero after the
# cooldown, no call lost when the last pod goes under load, and what is said without KEDA. Only by its name, because
# KEDA's build (keda.sh) takes 15 minutes. ROUNDS: how often it goes from zero to the first answer.

ROUNDS=${ROUNDS:-10}
CALL="curl --silent --fail --max-time 30 --output /dev/null --data hello http://$GATEWAY/function/server"

prepare_on_demand

explain() {
    k describe workflows,pods >&2
    kubectl -n cwasi-system logs deployment/cwasi-operator >&2
    kubectl -n keda logs deployment/keda-operator --tail 40 >&2
}

apply - <<'YAML'
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: zero}
spec:
  functions:
    server:
      image: localhost/guests:test
      role: secondary
      http: gateway
      scale: {min: 0, max: 3, cooldown: 5s}
      podTemplate:
        spec:
          nodeSelector: {kubernetes.io/hostname: node1}
          terminationGracePeriodSeconds: 10
          volumes: [{name: log, emptyDir: {}}]
          containers: [{name: server, command: [/server.wasm], volumeMounts: [{name: log, mountPath: /log}]}]
YAML
scales() { field workflow/zero '.status.conditions[?(@.type=="ScalesToZero")].reason'; }
has_scales() { [ "$(scales)" = "$1" ]; }
wait_for "$WAIT_SECONDS" "without KEDA the status says so" has_scales NoKeda
wait_field deployment/zero-server .status.readyReplicas 1

install_keda
# The operator looks for its kinds every 30 seconds.
wait_for "$WAIT_SECONDS" "functions scale to zero" has_scales Keda
k get scaledobject zero-server >/dev/null

at_zero() { [ "$(field deployment/zero-server .spec.replicas)" = 0 ] && gone pods -l cwasi.dev/function=server; }
wait_for 120 "the function has no pod after its cooldown" at_zero

start_gateway
seconds=()
for _ in $(seq "$ROUNDS"); do
    wait_for 120 "the function has no pod" at_zero
    seconds+=("$(on node1 $CALL --write-out '%{time_total}')")
done
mapfile -t seconds < <(printf '%s\n' "${seconds[@]}" | sort -n)
say "      from zero to the first answer: p50 ${seconds[$((ROUNDS / 2))]} s, longest ${seconds[-1]} s, of $ROUNDS"

# The last pod goes under load, again and again: calls wait, none is lost.
wait_for 120 "the function has no pod" at_zero
calling_pod caller node1
wait_calls caller 200 "$WAIT_SECONDS"
for _ in 1 2 3; do
    k scale deployment/zero-server --replicas 0 >/dev/null
    wait_for 60 "a pod runs again" has_field deployment/zero-server .status.readyReplicas 1
    wait_calls caller 200 "$WAIT_SECONDS"
done
k exec caller -c shell -- touch /shared/stop
wait_field pod/caller '.status.containerStatuses[?(@.name=="caller")].state.terminated.exitCode' 0
equals "calls that failed while the last pod went" "" "$(failed_calls caller)"
say "      $(ended caller) calls while the last pod went three times"
delete pod caller
wait_for 120 "the function has no pod after its cooldown" at_zero

# Redis is away: KEDA says that its trigger does not work, and the condition says the same.
kubectl -n cwasi-system scale deployment/redis --replicas 0 >/dev/null
wait_for "$WAIT_SECONDS" "the status says that the trigger fails" has_scales TriggerError
kubectl -n cwasi-system scale deployment/redis --replicas 1 >/dev/null
wait_for "$WAIT_SECONDS" "functions scale to zero again" has_scales Keda

# It leaves KEDA while it has no pod: for an HPA, and because KEDA goes. KEDA leaves it at zero, the operator does not.
set_scale() { k patch workflow zero --type merge -p "{\"spec\":{\"functions\":{\"server\":{\"scale\":$1}}}}" >/dev/null; }
wait_for 120 "the function has no pod" at_zero
set_scale '{"min":1,"cooldown":null}'
wait_field deployment/zero-server .status.readyReplicas 1
k get horizontalpodautoscaler zero-server >/dev/null
set_scale '{"min":0,"cooldown":"5s"}'
wait_for 120 "the function has no pod again" at_zero
kubectl delete -f "$KEDA_CRDS" --timeout=60s >/dev/null
wait_field deployment/zero-server .status.readyReplicas 1
wait_for "$WAIT_SECONDS" "the status says that KEDA is gone" has_scales NoKeda

# A function that is deleted is one that does not exist.
k delete workflow zero >/dev/null
sleep 2
status=$(on node1 curl --silent --output /dev/null --write-out '%{http_code}' --max-time 30 --data x "http://$GATEWAY/function/server")
equals "the status of a function that was deleted" 404 "$status"
stop_gateway
remove_keda
