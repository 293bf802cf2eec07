# 50 pods of functions on one node: all start, all are called, all are gone.
PODS=50
apply - <<YAML
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  replicas: $PODS
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}, annotations: {cwasi.role: secondary}}
    spec:
      runtimeClassName: cwasi
      nodeSelector: {kubernetes.io/hostname: node1}
      terminationGracePeriodSeconds: 5
      containers: [{name: server, image: "localhost/guests:test", command: [/server.wasm]}]
YAML
started=$SECONDS
wait_rollout deployment/server 240
say "      $PODS pods are ready after $((SECONDS - started)) s"
# What shims, zygotes and pause containers take, shared memory divided by its users.
on node1 sh -c 'cat /proc/[0-9]*/stat 2>/dev/null | sed -n "s/^\([0-9]*\) (\(cwasi-shim\|cwasi-sandbox\|pause\)) .*/\1 \2/p" |
    while read -r pid name; do echo "$name $(sed -n "s/^Pss: *\([0-9]*\) kB/\1/p" "/proc/$pid/smaps_rollup")"; done' |
    awk '{ count[$1]++; sum[$1] += $2 } END { for (name in sum)
        printf "      %s: %d, %.1f MiB each\n", name, count[name], sum[name] / count[name] / 1024 }' >&2
for number in 1 2 3; do
    apply - <<YAML
apiVersion: v1
kind: Pod
metadata: {name: caller-$number}
spec:
  runtimeClassName: cwasi
  nodeName: node1
  restartPolicy: Never
  containers: [{name: main, image: "localhost/guests:test", command: [/probe.wasm, repeat, server, "500", hello]}]
YAML
done
for number in 1 2 3; do
    wait_field "pod/caller-$number" .status.phase Succeeded
    equals "calls of caller-$number" "ok 500" "$(k logs "caller-$number" | grep ^ok)"
done
k delete deployment server --wait=false >/dev/null
k delete pods --all --wait=false >/dev/null
wait_for 180 "all $PODS pods are gone" gone pods
no_shim_is_left() { [ "$(on node1 sh -c 'cat /proc/[0-9]*/comm 2>/dev/null' | grep -c '^cwasi-')" = 0 ]; }
wait_for 30 "no process of the runtime is left" no_shim_is_left
