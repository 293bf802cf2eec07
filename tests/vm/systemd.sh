# Runs in the machine (scripts/vm.sh): the systemd cgroup driver, as the kubelet's cgroupDriver = systemd asks for it.
# needs: systemd
#
# A container's cgroup is a scope below the pod's slice. Limits of both hold, statistics and events are the scope's, it goes
# with the container, and no process of a function keeps a way to systemd.

POD=kubepods-burstable-podx.slice
SLICE=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/$POD
LIMIT=100663296
scope() { echo "$SLICE/cri-containerd-$1.scope"; }
driver() { mkdir -p /etc/cwasi && printf '%s\n' "cgroup_driver = \"$1\"" "$2" >/etc/cwasi/config.toml; }
in_pod() { # id, program, flags…
    id=$1 program=$2
    shift 2
    function_run "$id" "$program" --cgroup "$POD:cri-containerd:$id" "$@"
}
is_loaded() { systemctl list-units --all --plain --no-legend "cri-containerd-$1.scope" | grep -q .; }
stopped() { ctr task ls | grep -q "$1.*STOPPED"; }
remove() {
    ctr task kill --signal KILL "$1"
    wait_for "$1 to end" stopped "$1"
    ctr task rm "$1" >/dev/null 2>&1
    ctr container rm "$1"
    [ ! -e "$(scope "$1")" ] || fail "the scope of $1 is left"
    ! is_loaded "$1" || fail "the unit of $1 is left"
}

# A path for the one driver is nothing to the other.
in_pod wrong /act.wasm --rm
case $code-$said in 0-*) fail "a slice with cgroupfs" ;; *"SystemdCgroup = true"*) ;; *) fail "the error: $said" ;; esac
[ ! -e "/sys/fs/cgroup/$POD:cri-containerd:wrong" ] || fail "a literal path was made"
driver systemd
function_run wrong /act.wasm --rm --cgroup /default/wrong
case $code-$said in 0-*) fail "a path with systemd" ;; *"SystemdCgroup = false"*) ;; *) fail "the error: $said" ;; esac
say "a path for the other driver is an error that names the option"

ctr events >/events.log 2>&1 &
kills_told() { [ "$(grep -c /tasks/oom /events.log)" = "$1" ]; }
sleeper() { ctr run --rm --runtime io.containerd.runc.v2 --rootfs /rootfs sleeper /bin/busybox true; }
seen() { sleeper && grep -q /tasks/exit /events.log; }
wait_for "the first event" seen

# Twice under one name: the first one's unit is gone.
for kills in 1 2; do
    in_pod eater '/act.wasm#eat' --rm --memory-limit $LIMIT
    [ "$code" = 137 ] || fail "a command without memory ended with $code: $said"
    wait_for "an event for the command" kills_told $kills
    [ ! -e "$(scope eater)" ] || fail "its scope is left"
done
in_pod callee /act.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function=callee --memory-limit $LIMIT
[ "$code" = 0 ] || fail "the callee does not start: $said"
[ "$(cat "$(scope callee)/memory.max")" = $LIMIT ] || fail "its limit: $(cat "$(scope callee)/memory.max")"
function_run caller '/act.wasm#call-eat' --rm --cgroup "$POD:cri-containerd:caller"
[ "$code" = 11 ] || fail "a call that ended for want of memory is errno $code: $said"
wait_for "an event for the call" kills_told 3
in_pod caller '/act.wasm#call' --rm
[ "$code-$said" = 0-echo ] || fail "the call after it: $code, $said"
[ "$(cat "$SLICE/memory.current")" -ge "$(cat "$(scope callee)/memory.current")" ] || fail "it is not the slice's memory"
say "limits of memory hold, and kills are events and errors"

ctr task metrics --format json callee >/metrics.json || fail "no metrics"
number() { tr -d ' ' </metrics.json | grep -oE "\"$1\":[0-9]+" | head -n 1 | cut -d : -f 2; }
for key in anon file pgfault usage; do
    [ "$(number $key)" -gt 0 ] 2>/dev/null || fail "$key is not in $(cat /metrics.json)"
done
[ "$(number usage_limit)" = $LIMIT ] || fail "no limit in $(cat /metrics.json)"
# Accepted connections have the name of the socket on systemd's side.
grep -q ' /run/systemd/private$' /proc/net/unix || fail "systemd's socket is not seen"
kept=$(awk '$6 == "03" && $8 == "/run/systemd/private"' /proc/net/unix)
[ -z "$kept" ] || fail "somebody keeps a connection to systemd: $kept"
remove callee
say "statistics are the scope's, which goes with the container"

in_pod spinner '/act.wasm#spin' --detach --cpus 0.2
[ "$code" = 0 ] || fail "it does not start: $said"
[ "$(cat "$(scope spinner)/cpu.max")" = "20000 100000" ] || fail "its quota: $(cat "$(scope spinner)/cpu.max")"
throttled() { grep -q 'nr_throttled [1-9]' "$(scope spinner)/cpu.stat"; }
wait_for "it to be throttled" throttled
ctr task pause spinner || fail "pause"
grep -q 'frozen 1' "$(scope spinner)/cgroup.events" || fail "paused: $(cat "$(scope spinner)/cgroup.events")"
ctr task resume spinner || fail "resume"
grep -q 'frozen 0' "$(scope spinner)/cgroup.events" || fail "resumed: $(cat "$(scope spinner)/cgroup.events")"
systemctl daemon-reload || fail "reload"
[ "$(cat "$(scope spinner)/cpu.max")" = "20000 100000" ] || fail "its quota after a reload"
remove spinner
say "the quota and the freezer hold"

# The pod's limit, which only its slice has.
systemctl set-property --runtime $POD MemoryMax=$LIMIT || fail "no limit for the pod"
in_pod eater '/act.wasm#eat' --rm
[ "$code" = 137 ] || fail "a command without a limit in a pod with one ended with $code: $said"
systemctl set-property --runtime $POD MemoryMax=infinity
say "the pod's limit holds"

# As the kubelet's processes of a pod.
ctr oci spec | sed -e 's|"resources": {|&"pids":{"limit":8},|' -e 's|"cwd": "/",|&"args":["/act.wasm"],|' \
    -e 's|"path": "rootfs"|"path": "/rootfs"|' -e "s|\"cgroupsPath\": \"[^\"]*\"|\"cgroupsPath\": \"$POD:cri-containerd:few\"|" \
    -e '1s|{|{"annotations":{"cwasi.role":"secondary","cwasi.function":"callee","cwasi.concurrency":"7"},|' >/spec.json
said=$(ctr run --detach --runtime io.containerd.cwasi.v1 --log-uri file:///few.log --config /spec.json few 2>&1) ||
    fail "it does not start: $said"
[ "$(cat "$(scope few)/pids.max")" = 8 ] || fail "its processes: $(cat "$(scope few)/pids.max")"
remove few
say "the limit of processes holds"

# A shim that is killed leaves nothing; with ShimCgroup it is where that says.
# By their own names: a function's processes have the zygote's program.
named() { grep -lx "$1" /proc/[0-9]*/comm | cut -d / -f 3; }
no_shim() { [ -z "$(named cwasi-shim)" ]; }
wait_for "the shims of removed containers to end" no_shim
driver systemd 'shim_cgroup = "/cwasi.slice"'
in_pod orphan /act.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function=orphan
[ "$code" = 0 ] || fail "it does not start: $said"
shim=$(named cwasi-shim)
for pid in $shim $(named cwasi-sandbox); do
    grep -qx '0::/cwasi.slice' "/proc/$pid/cgroup" || fail "$(cat "/proc/$pid/comm") is in $(cat "/proc/$pid/cgroup")"
done
[ "$(wc -l </sys/fs/cgroup/cwasi.slice/cgroup.procs)" -ge 2 ] || fail "shim and zygote are not both there"
kill -9 "$shim"
gone() { [ ! -e "$(scope orphan)" ] && ! is_loaded orphan; }
wait_for "the scope of a killed shim's container to go" gone
say "a killed shim leaves no scope, and its cgroup is the one that ShimCgroup names"
