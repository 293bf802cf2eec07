# Runs in the machine (scripts/vm.sh): a container's memory limit with cgroup v2.
#
# The kernel kills what takes more, each kill is a TaskOOM event, a command's exit status is 137, the caller of a secondary
# gets errno 11 and the next call is answered. What containerd is told about memory is what the kernel says.

LIMIT=100663296
CGROUPS=/sys/fs/cgroup/default

ctr events >/events.log 2>&1 &
kills_told() { [ "$(grep -c /tasks/oom /events.log)" = "$1" ]; }
# Events come from here on.
sleeper() { ctr run --rm --runtime io.containerd.runc.v2 --rootfs /rootfs sleeper /bin/busybox true; }
seen() { sleeper && grep -q /tasks/exit /events.log; }
wait_for "the first event" seen

function_run eater '/act.wasm#eat' --rm --memory-limit $LIMIT
[ "$code" = 137 ] || fail "a command without memory ended with $code: $said"
wait_for "an event for the command" kills_told 1

function_run callee /act.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function=callee \
    --memory-limit $LIMIT
[ "$code" = 0 ] || fail "the callee does not start: $said"
[ "$(cat $CGROUPS/callee/memory.max)" = $LIMIT ] || fail "its limit: $(cat $CGROUPS/callee/memory.max)"
for kills in 2 3; do
    function_run caller '/act.wasm#call-eat' --rm
    [ "$code" = 11 ] || fail "a call that ended for want of memory is errno $code: $said"
    case $said in *"killed by signal 9"*) ;; *) fail "the caller reads: $said" ;; esac
    wait_for "an event for the call" kills_told $kills
    function_run caller '/act.wasm#call' --rm
    [ "$code-$said" = 0-echo ] || fail "the call after it: $code, $said"
done
[ "$(grep oom_kill\  $CGROUPS/callee/memory.events)" = "oom_kill 2" ] || fail "$(cat $CGROUPS/callee/memory.events)"
grep -q 'callee.*killed for want of memory' /containerd.log || fail "containerd's log says nothing of it"
function_run caller '/act.wasm#call-fail' --rm
case $code-$said in "8-callee: exit code 5; end of its stderr: why") ;; *) fail "a call that failed: $code, $said" ;; esac
say "kills for want of memory are events, errors of calls, and nothing more"

# What `ctr` and Kubernetes compute with. All files of this machine lie in memory: `inactive_file` is 0 here.
ctr task metrics --format json callee >/metrics.json || fail "no metrics"
number() { tr -d ' ' </metrics.json | grep -oE "\"$1\":[0-9]+" | head -n 1 | cut -d : -f 2; }
for key in anon file pgfault usage; do
    [ "$(number $key)" -gt 0 ] 2>/dev/null || fail "$key is not in $(cat /metrics.json)"
done
[ "$(number usage_limit)" = $LIMIT ] || fail "no limit in $(cat /metrics.json)"
say "metrics have what the kernel says"
