# Kubernetes' own end-to-end tests of nodes, with this runtime as the default one: their pods name no RuntimeClass. They
# run on node1 alone. Their images are stand-ins (build_e2e in images.sh).
#
# FOCUS and SKIP choose tests, by their full names; with HANDLER=runc they run with runc instead. The report is
# .cwasi/kubernetes/e2e/log.

HANDLER=${HANDLER:-cwasi}
SUBJECTS='RuntimeClass|Pods |Container Lifecycle Hook|Probing container|Container Runtime blackbox|InitContainer'
FOCUS=${FOCUS:-"\\[sig-node\\] ($SUBJECTS|Variable Expansion|Containers )"}
# Kubernetes' marks for tests that need more than a plain cluster, or many minutes.
# [Feature:RuntimeHandler] needs the handler below.
MARKS='\[(Serial|Slow|Disruptive|Flaky|Alpha|Beta|Feature:([^R]|R[^u])[^]]*|FeatureGate:[^]]*)\]|Windows'
# These fail with any runtime: there is no registry, and busybox' shell drops variables with such names.
FAIL_HERE='should be able to pull image|allow almost all printable ASCII characters'
SKIP=${SKIP:-"$MARKS|$FAIL_HERE"}
# Tests at a time: most of them wait.
PROCESSES=6
declare -A TYPES=([cwasi]=io.containerd.cwasi.v1 [runc]=io.containerd.runc.v2)

report=$STATE_DIR/kubernetes/e2e
rm -rf "$report"
mkdir -p "$report"
import_images node1 "${E2E_IMAGES[@]}"
on node1 sh -c 'cat >/etc/containerd/conf.d/default.toml' <<TOML
version = 3
[plugins."io.containerd.cri.v1.runtime".containerd]
  default_runtime_name = "$HANDLER"
  # The handler that their RuntimeClasses name.
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.test-handler]
    runtime_type = "${TYPES[$HANDLER]}"
TOML
# A test asks this file, not its imports, whether the handler is there.
on node1 sh -c 'echo "# runtimes.test-handler is in conf.d" >>/etc/containerd/config.toml'
restart_service node1 containerd
wait_for "$WAIT_SECONDS" "containerd of node1 answers" on node1 ctr version
wait_for "$WAIT_SECONDS" "node1 is ready" kubectl wait --for=condition=Ready node/node1 --timeout=1s
kubectl cordon node2 >/dev/null
in_network control "$PROGRAMS/ginkgo" --procs "$PROCESSES" --no-color --timeout 60m --focus "$FOCUS" --skip "$SKIP" \
    --keep-going "$PROGRAMS/e2e.test" -- --kubeconfig "$CLUSTER_DIR/kubeconfig" --provider skeleton \
    --report-dir "$report" --allowed-not-ready-nodes 1 --disable-log-dump >"$report/log" 2>&1 || true
grep -E '^(Ran |FAIL!|SUCCESS!|  \[FAIL\])' "$report/log" >&2 || fail "no test has run: $(tail -n 5 "$report/log")"
on node1 rm /etc/containerd/conf.d/default.toml
on node1 sed -i '/^# runtimes.test-handler/d' /etc/containerd/config.toml
restart_service node1 containerd
kubectl uncordon node2 >/dev/null
grep -q '^SUCCESS!' "$report/log" || fail "some tests failed: $report/log"
