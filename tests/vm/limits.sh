# Runs in the machine (scripts/vm.sh): processes, processor time and the freezer with cgroup v2.

CGROUPS=/sys/fs/cgroup/default
stopped() { ctr task ls | grep -q "$1.*STOPPED"; }
remove() {
    ctr task kill --signal KILL "$1"
    wait_for "$1 to end" stopped "$1"
    ctr task rm "$1" >/dev/null 2>&1
    ctr container rm "$1"
    [ ! -e "$CGROUPS/$1" ] || fail "the cgroup of $1 is left"
}
usage() { grep usage_usec "$CGROUPS/$1/cpu.stat"; }

function_run spinner '/act.wasm#spin' --detach --cpus 0.2
[ "$code" = 0 ] || fail "it does not start: $said"
[ "$(cat $CGROUPS/spinner/cpu.max)" = "20000 100000" ] || fail "its quota: $(cat $CGROUPS/spinner/cpu.max)"
throttled() { grep -q 'nr_throttled [1-9]' $CGROUPS/spinner/cpu.stat; }
wait_for "it to be throttled" throttled
say "the quota holds"

ctr task pause spinner || fail "pause"
grep -q 'frozen 1' $CGROUPS/spinner/cgroup.events || fail "paused: $(cat $CGROUPS/spinner/cgroup.events)"
ctr task ls | grep -q 'spinner.*PAUSED' || fail "it is not said to be paused"
before=$(usage spinner)
ctr task ls >/dev/null
[ "$(usage spinner)" = "$before" ] || fail "it runs while it is paused"
ctr task resume spinner || fail "resume"
runs() { [ "$(usage spinner)" != "$before" ]; }
wait_for "it to run again" runs
remove spinner
say "the freezer holds"

# `ctr run` has no flag for processes.
callee() { # processes, more annotations as JSON
    ctr oci spec | sed -e "s|\"resources\": {|&\"pids\":{\"limit\":$1},|" -e 's|"cwd": "/",|&"args":["/act.wasm"],|' \
        -e 's|"path": "rootfs"|"path": "/rootfs"|' -e 's|"cgroupsPath": "[^"]*"|"cgroupsPath": "/default/callee"|' \
        -e "1s|{|{\"annotations\":{\"cwasi.role\":\"secondary\",\"cwasi.function\":\"callee\"$2},|" >/spec.json
    said=$(ctr run --detach --runtime io.containerd.cwasi.v1 --log-uri file:///callee.log --config /spec.json callee 2>&1)
    code=$?
    [ "$code" = 0 ] || fail "it does not start: $said"
    [ "$(cat $CGROUPS/callee/pids.max)" = "$1" ] || fail "its processes: $(cat $CGROUPS/callee/pids.max)"
    function_run caller '/act.wasm#call' --rm
    [ "$code-$said" = 0-echo ] || fail "a call: $code, $said"
}
# Init and as many workers as that leaves; the kernel refuses one process more.
callee 8 ',"cwasi.concurrency":"7"'
[ "$(cat $CGROUPS/callee/pids.current)" = 8 ] || fail "not init and its workers: $(cat $CGROUPS/callee/pids.current)"
sh -c "echo 0 >$CGROUPS/callee/cgroup.procs; (true); exit 0" 2>/dev/null && fail "there is room for another process"
grep -q 'max [1-9]' $CGROUPS/callee/pids.events || fail "no process was refused: $(cat $CGROUPS/callee/pids.events)"
remove callee
say "the limit of processes holds"
