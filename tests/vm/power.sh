# Runs in the machine (scripts/vm.sh): the power is cut while functions call each other, and the machine boots again.
# needs: power cut
#
# containerd's metadata and the compiled modules are on the disk and stay. Everything else of ours was in memory: the
# containers have no tasks, and they start and call each other again, under the same names.

start() { # id
    function_run "$1" /act.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function="$1"
    [ "$code" = 0 ] || fail "$1 does not start: $said"
}
call() { # caller's id
    function_run "$1" '/act.wasm#call' --rm
    [ "$code-$said" = 0-echo ] || fail "a call ended with $code: $said"
}

if [ ! -e /var/lib/cut ]; then
    start callee
    start other
    call caller
    say "functions run before the cut"
    touch /var/lib/cut
    # The compiled module and containerd's metadata are written; the state of running tasks never is.
    sync
    while :; do
        function_run caller '/act.wasm#call' --rm
        echo "vm-test: cut"
    done
fi

[ -n "$(ls /var/lib/cwasi/aot)" ] || fail "no compiled modules are left: $(find /var/lib/cwasi)"
ctr container ls --quiet | grep -qx callee || fail "containerd has lost its metadata: $(ctr container ls)"
[ -z "$(ctr task ls --quiet)" ] || fail "tasks survived the cut: $(ctr task ls)"
[ ! -e /run/cwasi ] || fail "state survived the cut: $(find /run/cwasi)"
for id in $(ctr container ls --quiet); do
    ctr container rm "$id" || fail "$id cannot be removed"
done
start callee
start other
call caller
[ "$(ctr task ls --quiet | sort | tr '\n' ' ')" = "callee other " ] || fail "tasks: $(ctr task ls)"
for id in callee other; do
    ctr task kill --signal KILL $id
    stopped() { ctr task ls | grep -q "$id.*STOPPED"; }
    wait_for "$id to end" stopped
    ctr task rm $id >/dev/null 2>&1
    ctr container rm $id || fail "$id cannot be removed"
done
[ ! -e /sys/fs/cgroup/default/callee ] || fail "a cgroup is left"
say "functions start and call under the same names after a power cut"
