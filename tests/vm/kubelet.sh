# Runs in the machine (scripts/vm.sh): the kubelet with the systemd driver and cgroup v2, and containerd 2.1.
# needs: systemd
# needs: kubelet
#
# The pods are static ones of a kubelet by itself. A pod's cgroup is the kubelet's slice of it, with its containers'
# scopes. Limits of pod and container hold, the kubelet counts what both use, and nothing is left of a removed pod.

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
      resources: {requests: {cpu: 100m, memory: 32Mi}, limits: {cpu: 500m, memory: $LIMIT}}
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
# What the kubelet says of a pod: its part of a list without spaces.
status() { get pods | sed 's/{"metadata":{"name":"/\n&/g' | grep "^{\"metadata\":{\"name\":\"$1-machine\""; }
says() { status "$1" | grep -qE "$2"; }
ended() { # pod, exit code, reason
    ends() { says "$1" '"state":\{"terminated":'; }
    wait_for "$1 to end" ends "$1"
    says "$1" "\"state\":\{\"terminated\":\{\"exitCode\":$2,\"reason\":\"$3\"" || fail "not $2 and $3: $(status "$1")"
}
# The kubelet's summary of a pod: a value of its container, and the same one of the pod.
summary() {
    get stats/summary | awk -v name="\"$1-machine\"," -v key="\"$2\":" '
        $1 == "\"podRef\":" { is_ours = 0 }
        $1 == "\"name\":" && $2 == name { is_ours = 1 }
        is_ours && $1 == key { sub(",", "", $2); printf "%s ", $2 }'
}
both_exceed() { # pod, key, value
    # shellcheck disable=SC2046 # one value for each container
    set -- "$3" $(summary "$1" "$2")
    [ "${2:-0}" -gt "$1" ] && [ "${3:-0}" -gt "$1" ]
}

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
[ "$(cat "$(slice callee)/cpu.max")" = "50000 100000" ] || fail "the pod's quota: $(cat "$(slice callee)/cpu.max")"
[ "$(cat "$(scope callee)/memory.max")" = $LIMIT ] || fail "its limit: $(cat "$(scope callee)/memory.max")"
[ "$(cat "$(scope callee)/cpu.max")" = "50000 100000" ] || fail "its quota: $(cat "$(scope callee)/cpu.max")"
say "limits are the container's and the pod's"

# The kubelet asks for it, so that a container ends as a whole; runc writes it into the scope, too.
[ "$(cat "$(scope callee)/memory.oom.group")" = 1 ] || fail "the scope is not killed as a whole"
pod eater '/act.wasm#eat' Never ""
ended eater 137 OOMKilled
pod caller '/act.wasm#call-eat' Never ""
ended caller 11 Error
restarted() { says callee '"restartCount":1' && says callee '"lastState":\{"terminated":\{"exitCode":137,"reason":"OOMKilled"'; }
wait_for "the kubelet to start the callee again" restarted
wait_for "the callee to run again" runs callee
pod next '/act.wasm#call' Never ""
ended next 0 Completed
say "without memory a container ends with 137 and OOMKilled, and its caller with errno 11"

pod spinner '/act.wasm#spin' Never ""
wait_for "the spinner to run" runs spinner
throttled() { grep -q 'nr_throttled [1-9]' "$(scope spinner)/cpu.stat"; }
wait_for "it to be throttled" throttled
# Billionths of a processor, of which it may have half.
wait_for "the CPU of pod and container" both_exceed spinner usageNanoCores 50000000
wait_for "the memory of pod and container" both_exceed spinner workingSetBytes 100000
wait_for "the memory without files of pod and container" both_exceed spinner rssBytes 0
say "the kubelet counts the CPU and memory of pod and container: $(summary spinner usageNanoCores)billionths of a processor"

rm /pods/*.yaml
no_slice() { [ -z "$(find $SLICES -name '*-pod*.slice')" ]; }
wait_for "the pods' slices to go" no_slice
no_process() { ! cat /proc/[0-9]*/comm 2>/dev/null | grep -q '^cwasi-'; }
wait_for "the runtime's processes to end" no_process
no_container() { [ -z "$(ctr -n k8s.io containers ls --quiet)" ] && [ -z "$(ls /var/lib/kubelet/pods)" ]; }
wait_for "the kubelet to forget them" no_container
[ -z "$(ls /run/cwasi/g)" ] || fail "state is left: $(find /run/cwasi/g)"
[ -z "$(systemctl list-units --all --plain --no-legend 'cri-containerd-*')" ] || fail "units are left"
! grep /run/containerd/ /proc/mounts || fail "mounts are left"
say "nothing is left of removed pods"
