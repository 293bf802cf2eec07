# Runs in the machine (scripts/vm.sh): the kubelet with the systemd driver and cgroup v2, and containerd 2.1.
# needs: systemd
# needs: kubelet
#
# The pods are static ones of a kubelet by itself. A pod's cgroup is the kubelet's slice of it, with its containers'
# scopes, and the limits are those of the pod and of the container.

# Polls of `wait_for`, and seconds between them: on the emulated processor the kubelet starts in minutes.
POLLS=240 PAUSE=2
LIMIT=67108864
SLICES=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice

# pod NAME COMMAND RESTART ANNOTATIONS: writes it where the kubelet finds it; its UID, and so its slice, has its name
pod() {
    cat >"/$1.yaml" <<YAML
apiVersion: v1
kind: Pod
metadata: {name: $1, uid: $1, annotations: {$4}}
spec:
  hostNetwork: true
  restartPolicy: $3
  terminationGracePeriodSeconds: 5
  containers:
    - name: main
      image: localhost/act:test
      imagePullPolicy: Never
      command: ["$2"]
      resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 200m, memory: $LIMIT}}
YAML
    mv "/$1.yaml" "/pods/$1.yaml"
}
slice() { echo "$SLICES/kubepods-burstable-pod$1.slice"; }
get() { wget -q -O - "http://127.0.0.1:10255/$1" 2>/dev/null; }
# The function's container: the scope in which its workers are.
scope() { grep -l . "$(slice "$1")"/cri-containerd-*.scope/cgroup.procs 2>/dev/null | while read -r file; do
    pid=$(head -n 1 "$file")
    ! grep -q cwasi- "/proc/$pid/comm" || dirname "$file"
done; }
runs() { [ -n "$(scope "$1")" ]; }

# The kubelet would take it for the machine's root.
rm -r /rootfs
mkdir -p /pods /etc/kubernetes /var/lib/kubelet
echo '127.0.0.1 localhost' >/etc/hosts
echo 'root:x:0:0::/:/bin/sh' >/etc/passwd
ip link set lo up
ip address add 10.0.0.1/32 dev lo
for image in pause act; do
    ctr -n k8s.io images import --no-unpack --all-platforms /images/$image.tar >/dev/null || fail "import of $image"
done
kubelet --config /etc/kubelet.yaml --node-ip 10.0.0.1 --hostname-override machine >/kubelet.log 2>&1 &
kubelet=$!
answers() { kill -0 $kubelet || fail "the kubelet has ended"; get healthz | grep -q ok; }
wait_for "the kubelet to answer" answers
has_slice() { [ -d $SLICES ]; }
wait_for "the kubelet's slice of pods" has_slice

pod callee /act.wasm Always "cwasi.role: secondary, cwasi.function: callee, cwasi.timeout: 15m, cwasi.concurrency: '2'"
wait_for "the callee to run" runs callee
for file in "$(slice callee)"/*/cgroup.procs; do
    case $file in */cri-containerd-*.scope/*) ;; *) fail "no scope: $file" ;; esac
done
[ "$(ls -d "$(slice callee)"/*.scope | wc -l)" = 2 ] || fail "not the pause container and the function: $(ls "$(slice callee)")"
[ -z "$(find /sys/fs/cgroup -name 'cri-containerd*' -not -path "$SLICES/*")" ] || fail "a container is outside of its pod"
say "a pod's containers are scopes of the kubelet's slice"

[ "$(cat "$(slice callee)/memory.max")" = $LIMIT ] || fail "the pod's limit: $(cat "$(slice callee)/memory.max")"
[ "$(cat "$(slice callee)/cpu.max")" = "20000 100000" ] || fail "the pod's quota: $(cat "$(slice callee)/cpu.max")"
[ "$(cat "$(scope callee)/memory.max")" = $LIMIT ] || fail "its limit: $(cat "$(scope callee)/memory.max")"
[ "$(cat "$(scope callee)/cpu.max")" = "20000 100000" ] || fail "its quota: $(cat "$(scope callee)/cpu.max")"
say "limits are the container's and the pod's"
