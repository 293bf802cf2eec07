# The video workflow as a Workflow with placement `auto` and with `spread`, in turns: its time, and the mode of each of
# its edges. Only by its name, because it measures. REPEATS: how often each placement runs.

REPEATS=${REPEATS:-5}

for node in node1 node2; do
    import_images "$node" "${VIDEO_NAMES[@]}"
done
kubectl apply -f "$CHECKOUT/deploy/kubernetes/crd.yaml" -f "$CHECKOUT/deploy/kubernetes/redis.yaml" \
    -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" >/dev/null
configure_nodes 'redis_url = "redis://:change-me@10.96.0.63:6379"'
wait_for "$WAIT_SECONDS" "Redis is there" kubectl -n cwasi-system rollout status deployment/redis --timeout=1s
wait_for "$WAIT_SECONDS" "the API knows workflows" kubectl get workflows -A
kubectl apply -f "$CHECKOUT/deploy/kubernetes/operator.yaml" >/dev/null
digest=$(on node1 ctr -n k8s.io images ls "name==localhost/fn-utils:demo" | awk 'NR == 2 { print $3 }')

# video POLICY: workflows/vehicle-paths with images instead of files, and a container that brings the video
video() {
    cat <<YAML
apiVersion: cwasi.dev/v1alpha1
kind: Workflow
metadata: {name: $1}
spec:
  placement: {policy: $1}
  functions:
    extract-frames:
      image: localhost/extract-frames:demo
      args: [/in/cam0.mp4, --homography, /in/truth.json]
      podTemplate:
        spec:
          volumes: [{name: in, emptyDir: {}}, {name: out, emptyDir: {}}]
          initContainers:
            - name: footage
              image: localhost/footage:demo
              imagePullPolicy: IfNotPresent
              command: [/bin/sh, -c, "cp /footage/* /in/ && echo here"]
              volumeMounts: [{name: in, mountPath: /in}]
          containers:
            - name: extract-frames
              volumeMounts: [{name: in, mountPath: /in, readOnly: true}, {name: out, mountPath: /out}]
    process-frames: {image: "localhost/process-frames:demo", role: secondary, replicas: 2}
    prepare-dataset:
      image: localhost/prepare-dataset:demo
      role: secondary
      fanIn: {parts: caller}
      embed: {fn_utils: "localhost/fn-utils:demo@$digest"}
    reconstruct-paths: {image: "localhost/reconstruct-paths:demo", role: secondary}
YAML
}

job_of() { k get jobs -l "cwasi.dev/workflow=$1" -o name; }
has_completed() { [ -n "$(job_of "$1")" ] && has_field "$(job_of "$1")" .status.succeeded 1; }
# stamp JOB CONTAINER: when it wrote its last line, in ms
stamp() { date -d "$(k logs "$1" -c "$2" --timestamps --tail 1 | cut -d ' ' -f 1)" +%s%3N; }
is_measured() { [[ $(field "workflow/$1" .status.local) == *% ]]; }
explain() {
    k get workflows -o yaml >&2
    k describe pods >&2
    kubectl -n cwasi-system logs -l app=cwasi-operator --tail 50 >&2
}

declare -A times=() edges=()
expected=
for _ in $(seq "$REPEATS"); do
    for policy in auto spread; do
        video "$policy" | apply -
        wait_for 300 "the video workflow with $policy completes" has_completed "$policy"
        job=$(job_of "$policy")
        times[$policy]+=" $(($(stamp "$job" extract-frames) - $(stamp "$job" footage)))"
        said=$(k logs "$job" -c extract-frames)
        equals "what the workflow says with $policy" "${expected:=$said}" "$said"
        if [ -z "${edges[$policy]:-}" ]; then
            wait_for 120 "the edges of $policy are measured" is_measured "$policy"
            edges[$policy]="$(field "workflow/$policy" .status.local) local: $(field "workflow/$policy" .status.edges)"
        fi
        k delete workflow "$policy" >/dev/null
        wait_for 60 "no pods are left" gone pods
    done
done
explain() { :; }

for policy in auto spread; do
    mapfile -t sorted < <(tr ' ' '\n' <<<"${times[$policy]# }" | sort -n)
    say "      $policy: p50 ${sorted[$((REPEATS / 2))]} ms (${sorted[0]}-${sorted[-1]}) of $REPEATS; ${edges[$policy]}"
done
contains "LOCAL with auto" '^100% ' "${edges[auto]}"

kubectl delete -f "$CHECKOUT/deploy/kubernetes/operator.yaml" -f "$CHECKOUT/deploy/kubernetes/metrics.yaml" \
    -f "$CHECKOUT/deploy/kubernetes/redis.yaml" --wait=false >/dev/null
configure_nodes ''
