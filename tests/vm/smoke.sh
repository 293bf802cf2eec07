# Runs in the machine (scripts/vm.sh), also on 64-bit ARM: what the runtime is for. A function starts and is called,
# a payload moves without a copy, a function is linked into its caller, and what fails ends as it should.
# needs: guests

say "$(uname -m), pages of $(awk '/^KernelPageSize/ { print $2; exit }' /proc/self/smaps) kB," \
    "huge pages: $(cat /sys/kernel/mm/transparent_hugepage/enabled), shared: $(cat /sys/kernel/mm/transparent_hugepage/shmem_enabled)"

# What a container says first may be that its module is compiled.
newline="
"
secondary() { # id, program
    function_run "$1" "$2" --detach --annotation cwasi.role=secondary --annotation cwasi.function="$1"
    [ "$code" = 0 ] || fail "$id does not start: $said"
}
stopped() { ctr task ls | grep -q "$1.*STOPPED"; }

secondary callee /act.wasm
function_run caller '/act.wasm#call' --rm
[ "$code-$said" = 0-echo ] || fail "a call ended with $code: $said"
function_run caller '/act.wasm#call-fail' --rm
case $code-$said in "8-callee: exit code 5; end of its stderr: why") ;; *) fail "a call that fails: $code, $said" ;; esac
say "a function starts and is called"

function_run trapped '/act.wasm#trap' --rm
[ "$code" = 134 ] || fail "a trap ended with $code: $said"
case $said in *unreachable*) ;; *) fail "a trap says: $said" ;; esac
say "a trap is exit code 134 and a sentence"

secondary reader /reader.wasm
said=$(ctr run --rm --runtime io.containerd.cwasi.v1 --rootfs /rootfs sender /sender.wasm send 3000000 3 reader 2>&1) ||
    fail "a region: $said"
say "a region moves without a copy: ${said##*"$newline"}"

ctr images import --no-unpack --all-platforms /letters.tar >/dev/null || fail "import"
said=$(ctr run --rm --runtime io.containerd.cwasi.v1 --annotation cwasi.workflow=w \
    --annotation cwasi.embed=letters=localhost/letters:test --rootfs /rootfs shout /shout.wasm banana 2>&1)
[ "${said##*"$newline"}" = "BANANA! (3× a)" ] || fail "an embedded function: $said"
say "a function is linked into its caller"

init=$(ctr task ls | awk '$1 == "reader" { print $2 }')
kill -KILL "$init"
wait_for "the killed function to stop" stopped reader
ctr task kill --signal KILL callee
wait_for "the other one to stop" stopped callee
for id in reader callee; do
    ctr task rm $id >/dev/null 2>&1
    ctr container rm $id || fail "$id cannot be removed"
    [ ! -e /sys/fs/cgroup/default/$id ] || fail "the cgroup of $id is left"
done
say "what is killed leaves nothing"
