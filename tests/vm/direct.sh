# Runs in two machines (scripts/vm.sh): the functions of the first one call those of the second one over a network, without
# Redis. The power of the second one is cut in the middle of a call, and it boots again.
# needs: a peer

# Polls of `wait_for`, and seconds between them: the other machine boots on an emulated processor.
POLLS=600 PAUSE=0.5
first=10.0.0.1 peer=10.0.0.2
if grep -q vm.role=peer /proc/cmdline; then
    name=peer own=$peer other=$first
else
    name=first own=$first other=$peer
fi

start() { # function
    function_run "$1" /act.wasm --detach --annotation cwasi.role=secondary --annotation cwasi.function="$1"
    [ "$code" = 0 ] || fail "$1 does not start: $said"
}
fetch() { timeout 5 wget -q -O "$1" "http://$other/$2" 2>/dev/null; }

unxz /modules/*.xz
for module in failover net_failover virtio_net; do insmod /modules/$module.ko || fail "there is no $module"; done
ip link set lo up
ip address add "$own/24" dev eth0
ip link set eth0 up
mkdir -p /etc/cwasi /www
# The key of the second machine is on its disk, and stays.
[ "$name" = peer ] && keys=/var/lib || keys=/etc/cwasi
printf '%s\n' "node = \"$name\"" "link_advertise = \"$own:9470\"" "link_key = \"$keys/link.key\"" >/etc/cwasi/config.toml
cwasi doctor 2>&1 | sed -n 's/.*link_peers of other nodes: "\(.*\)".*/\1/p' >/www/entry
[ -s /www/entry ] || fail "cwasi doctor prints no entry: $(cwasi doctor 2>&1)"
httpd -p 80 -h /www
wait_for "the entry of the other machine" fetch /entry entry
echo "link_peers = [\"$(cat /entry)\"]" >>/etc/cwasi/config.toml

if [ "$name" = peer ]; then
    if [ ! -e /var/lib/cut ]; then
        touch /var/lib/cut
        sync
    else
        ctr container rm callee || fail "the container of the function is lost: $(ctr container ls)"
    fi
    start callee
    say "the function of the second machine runs"
    # Processor time of the function; the first machine sees in it that a call is under way.
    while sleep 0.2; do
        grep usage_usec /sys/fs/cgroup/default/callee/cpu.stat >/www/used.new && mv /www/used.new /www/used
        if [ ! -e /asked ] && fetch /asked cut; then echo "vm-test: cut"; fi
    done
fi

answers() {
    function_run caller '/act.wasm#call' --rm
    [ "$code-$said" = 0-echo ]
}
wait_for "a call to the other machine" answers
say "functions call across machines without Redis"

used() { fetch - used | cut -d ' ' -f 2; }
before=$(used)
(
    function_run spinner '/act.wasm#call-spin' --rm
    echo "$code $said" >/spinner.end
) &
# The callee of this call never returns.
is_under_way() { [ "$(used)" -gt "$((before + 1000000))" ]; }
wait_for "the call to be under way" is_under_way
touch /www/cut
wait_for "the end of the call whose callee lost its power" test -s /spinner.end
# Whether it ran cannot be known: errno 11.
grep -q '^11 ' /spinner.end || fail "the call ended with $(cat /spinner.end)"
rm /www/cut
answers && fail "something answered without power"
# Nothing took the call, so it may be made again: errno 10, or 3 once nobody knows the name.
case $code in 10 | 3) ;; *) fail "a call to a machine without power ended with $code: $said" ;; esac
say "calls to a machine without power end: 11 for the one that was under way, $code for a new one"
wait_for "a call to the machine that booted again" answers
for _ in 1 2 3; do answers || fail "a later call ended with $code: $said"; done
say "the machine that booted again is called as before"
