# Operators as processes on the machine `control`, without pods. Sourced by scripts/kubernetes.sh.
#
# Each has a user of its own, so the API server's audit log tells which of them has done what.

OPERATOR=$STATIC_PROGRAMS/$PROFILE/cwasi-operator
declare -A OPERATOR_PORT=([operator-a]=8081 [operator-b]=8082)
AUDIT_LOG=$CLUSTER_DIR/control/disk/var/log/audit.log

# The definition, and the operator's rights for the users.
prepare_operators() {
    local users=() name
    for name in $OPERATORS; do
        users+=(--user "$name")
    done
    present namespace cwasi-system
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" >/dev/null
    kubectl wait --for=condition=Established crd/workflows.cwasi.dev --timeout=30s >/dev/null
    kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null
    kubectl -n cwasi-system delete deployment cwasi-operator >/dev/null
    present clusterrolebinding operators --clusterrole cwasi-operator "${users[@]}"
    present --namespace cwasi-system rolebinding operators --role cwasi-operator "${users[@]}"
}

# present ARGUMENT…: as `kubectl create`, also if it is there
present() { kubectl create "$@" --dry-run=client -o yaml | kubectl apply -f - >/dev/null; }

start_operator() {
    local name=$1 port=${OPERATOR_PORT[$1]}
    (
        enter_cgroups control
        # It becomes a child of the machine's process 1, which takes note of its end.
        # shellcheck disable=SC2016 # the machine's shell expands it
        on control env KUBECONFIG="$CLUSTER_DIR/$name.kubeconfig" HOSTNAME="$name" setsid --fork \
            sh -c 'echo $$ >"/run/services/$0.pid"; exec "$@"' "$name" \
            "$OPERATOR" --listen "127.0.0.1:$port" --scaler-listen "127.0.0.1:$((port + 1000))"
    ) </dev/null >>"$CLUSTER_DIR/control/disk/var/log/$name.log" 2>&1 9>&-
    explain() { tail -n 20 "$CLUSTER_DIR/control/disk/var/log/$name.log" >&2; }
    wait_for 30 "$name serves its metrics" operator_metrics "$name"
    explain() { :; }
}

operator_metrics() { in_network control curl --silent --fail --max-time 5 "http://127.0.0.1:${OPERATOR_PORT[$1]}/metrics"; }

# signal_operator NAME SIGNAL
signal_operator() { on control sh -c "kill -$2 \$(cat /run/services/$1.pid)"; }

operator_ended() { ! on control sh -c "kill -0 \$(cat /run/services/$1.pid)" 2>/dev/null; }

stop_operator() {
    signal_operator "$1" "${2:-TERM}"
    wait_for 20 "$1 has ended" operator_ended "$1"
}

is_leader() { operator_metrics "$1" | grep -q '^cwasi_operator_leader 1$'; }

# A point in the audit log, after which `requests` counts.
audit_point() { wc -l <"$AUDIT_LOG"; }

# requests POINT NAME [PATTERN…]: what an operator asked of the API since then, without Leases and its own look for pods
# with metrics; each line has all the patterns (grep -E)
requests() {
    local point=$1 name=$2 lines pattern
    shift 2
    lines=$(tail -n "+$((point + 1))" "$AUDIT_LOG" | grep -F "\"username\":\"$name\"" |
        grep -vE '"resource":"leases"|"/api/v1/namespaces/cwasi-system/pods\?|"stage":"ResponseStarted"' || true)
    for pattern in "$@"; do
        lines=$(grep -E -- "$pattern" <<<"$lines" || true)
    done
    [ -z "$lines" ] || echo "$lines"
}

# count_requests: as `requests`
count_requests() { requests "$@" | wc -l; }

WRITES='"verb":"(patch|create|update|delete)"'
