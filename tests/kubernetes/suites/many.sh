# 500 Workflows of three functions on a control plane without nodes: how long it takes until all are reconciled, what
# the operator asks of the API, its memory and CPU time. Only by its name: 15 minutes, of which the operator idles for
# 7. WORKFLOWS: how many.

WORKFLOWS=${WORKFLOWS:-500}
# The operator looks at each Workflow without a cause once in it.
PERIOD_SECONDS=300
# Most memory in KiB, that of the first list included.
MEMORY_MAX=$((64 * 1024 + WORKFLOWS * 200))
# Most requests for a new Workflow: a look for a foreign object and an apply for each of its five objects, and writes of
# the status, whose pods come one after the other.
REQUESTS_MAX=30

workflows() {
    local number
    for number in $(seq "$WORKFLOWS"); do
        cat <<YAML
---
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: wf$number}
spec:
  functions:
    front: {image: "registry.example/front:1", role: secondary, http: 8080, ingress: {host: wf$number.example}}
    prices: {image: "registry.example/prices:1", role: secondary, env: {LEVEL: "2"}}
    stock: {image: "registry.example/stock:1", role: secondary, timeout: 5s}
YAML
    done
}

# In hundredths of a second.
processor_ticks() { on control sh -c 'cat "/proc/$(cat /run/services/operator-a.pid)/stat"' | awk '{ print $14 + $15 }'; }
# processor_seconds [TICKS]: since then
processor_seconds() { awk -v now="$(processor_ticks)" -v before="${1:-0}" 'BEGIN { printf "%.1f", (now - before) / 100 }'; }
# memory KEY: VmRSS or VmHWM, in KiB
memory() { on control sh -c 'cat "/proc/$(cat /run/services/operator-a.pid)/status"' | awk -v key="$1:" '$1 == key { print $2 }'; }
metric() { operator_metrics operator-a | awk -v key="$1" '$1 == key { print $2 }'; }

# count KIND JSONPATH VALUE: objects with it
count() { k get "$1" -o "jsonpath={range .items[*]}{$2}{\"\\n\"}{end}" | grep -cxF -- "$3" || true; }
have() { [ "$(count "$@")" = "$WORKFLOWS" ]; }
all_pods() { [ "$(k get pods --no-headers 2>/dev/null | wc -l)" = $((3 * WORKFLOWS)) ]; }
is_quiet() {
    local before
    before=$(audit_point)
    sleep 10
    [ "$(count_requests "$before" operator-a "$WRITES")" = 0 ]
}
# at_most WHAT MAXIMUM ACTUAL
at_most() { [ "$3" -le "$2" ] || fail "$1: at most $2, got $3"; }

prepare_operators
kubectl apply -f "$CHECKOUT/deploy/kubernetes/runtimeclass.yaml" >/dev/null
start_operator operator-a
explain() {
    tail -n 20 "$CLUSTER_DIR/control/disk/var/log/operator-a.log" >&2
    k get workflows 2>/dev/null | tail -n 5 >&2
}
wait_for 60 "the operator is the leader" is_leader operator-a
say "      without Workflows: memory $(memory VmRSS) KiB"
workflows >"$CLUSTER_DIR/workflows.yaml"
start=$(audit_point)
began=$(date +%s%N)
k create -f "$CLUSTER_DIR/workflows.yaml" >/dev/null
created=$((($(date +%s%N) - began) / 1000000))
wait_for 600 "each Workflow has a status" have workflows .status.observedGeneration 1
reconciled=$((($(date +%s%N) - began) / 1000000))
equals "Deployments" $((3 * WORKFLOWS)) "$(k get deployments --no-headers | wc -l)"
say "      $WORKFLOWS Workflows: created in $created ms, all reconciled after $reconciled ms"
say "      requests for each until then: $(($(count_requests "$start" operator-a) / WORKFLOWS)); CPU $(processor_seconds) s"
wait_for 900 "all pods are there" all_pods
# No pod of metrics.yaml is there, which each status says once, after a minute.
wait_for 600 "each Workflow says that nothing is measured" have workflows '.status.conditions[?(@.type=="Measured")].reason' NoMetrics
wait_for 900 "the operator has written what there is to write" is_quiet
each=$(($(count_requests "$start" operator-a) / WORKFLOWS))
say "      with their pods: $each requests for each, $(metric 'cwasi_operator_reconciles_total{result="ok"}') reconciles, CPU $(processor_seconds) s"
say "      memory $(memory VmRSS) KiB, at most $(memory VmHWM) KiB"
at_most "requests for each new Workflow" "$REQUESTS_MAX" "$each"
at_most "the operator's memory in KiB" "$MEMORY_MAX" "$(memory VmHWM)"

# Nothing changes: each Workflow is looked at, and nothing is asked.
start=$(audit_point)
before=$(metric 'cwasi_operator_reconciles_total{result="ok"}')
ticks=$(processor_ticks)
sleep $((PERIOD_SECONDS + 30))
looked=$(($(metric 'cwasi_operator_reconciles_total{result="ok"}') - before))
say "      idle for $((PERIOD_SECONDS + 30)) s: $looked reconciles, $(count_requests "$start" operator-a) requests, CPU $(processor_seconds "$ticks") s"
[ "$looked" -ge "$WORKFLOWS" ] || fail "only $looked of $WORKFLOWS Workflows were looked at"
equals "writes without a change" "" "$(requests "$start" operator-a "$WRITES" | head -n 3)"
# Watches that are renewed, and kinds that are not there and are looked for: none of it grows with the Workflows.
equals "reads of single objects without a change" "" "$(requests "$start" operator-a '"verb":"get"' | head -n 3)"
at_most "requests without a change" 200 "$(count_requests "$start" operator-a)"

# One of them changes.
start=$(audit_point)
k patch workflow wf7 --type merge -p '{"spec":{"functions":{"prices":{"env":{"LEVEL":"3"}}}}}' >/dev/null
wait_field workflow/wf7 .status.observedGeneration 2
wait_for 120 "the operator has written what there is to write" is_quiet
foreign=$(requests "$start" operator-a "$WRITES" | grep -v '"name":"wf7[-."]' | grep -v '"resource":"events"' || true)
equals "writes about other Workflows" "" "$(head -n 3 <<<"$foreign")"
equals "applied objects" 1 "$(count_requests "$start" operator-a '"verb":"patch"' '"resource":"(deployments|services|ingresses)"')"

# Somebody changes an object: it comes back.
k set image deployment/wf8-front front=registry.example/other:1 >/dev/null
wait_field deployment/wf8-front '.spec.template.spec.containers[0].image' registry.example/front:1

# A new process has everything to read, and nothing to write.
stop_operator operator-a
start=$(audit_point)
start_operator operator-a
wait_for 60 "the operator is the leader" is_leader operator-a
looked_at_all() { [ "$(metric 'cwasi_operator_reconciles_total{result="ok"}')" -ge "$WORKFLOWS" ]; }
wait_for 300 "each Workflow was looked at" looked_at_all
wait_for 120 "the operator has written what there is to write" is_quiet
say "      after a restart: $(count_requests "$start" operator-a) requests, CPU $(processor_seconds) s, memory $(memory VmHWM) KiB"
equals "applied objects after a restart" "" \
    "$(requests "$start" operator-a "$WRITES" '"resource":"(deployments|services|ingresses)"' | head -n 3)"
stop_operator operator-a
