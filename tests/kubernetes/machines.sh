# Machines of the test cluster: start, enter, connect, end. Sourced by scripts/kubernetes.sh and by its cases.
#
# A machine is a tree of processes in namespaces of its own (machine.sh). $CLUSTER_DIR/NAME/pid is its process 1, as the
# outside counts. The machine `control` has the bridge to which the nodes' cables lead, so nothing of this machine's
# network is touched.

CLUSTER_DIR=$STATE_DIR/kubernetes/cluster
# Below each hierarchy of cgroups; two clusters of two checkouts do not meet.
CLUSTER_CGROUP=cwasi-kubernetes-$(printf '%s' "$CHECKOUT" | cksum | cut -d ' ' -f 1)
# Longest wait for a machine, a service or an answer of the cluster, unless a case says otherwise.
WAIT_SECONDS=90

# Polls a command until it succeeds: wait_for SECONDS WHAT COMMAND…
wait_for() {
    local seconds=$1 what=$2 end
    shift 2
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        [ "$SECONDS" -lt "$end" ] || { explain "$what"; die "waited $seconds s for: $what"; }
        sleep 0.2
    done
}

# What to show when a wait has ended in vain; a case may define its own.
explain() { :; }

# Moves the calling shell into a machine's cgroups, in which its programs are then counted and limited.
enter_cgroups() {
    local hierarchy group
    for hierarchy in /sys/fs/cgroup/*/; do
        group=$hierarchy$CLUSTER_CGROUP/$1
        mkdir -p "$group"
        if [ -e "$hierarchy/cpuset.cpus" ]; then
            for file in cpus mems; do
                cat "$hierarchy/cpuset.$file" >"$hierarchy$CLUSTER_CGROUP/cpuset.$file"
                cat "$hierarchy/cpuset.$file" >"$group/cpuset.$file"
            done
        fi
        echo $BASHPID >"$group/cgroup.procs"
    done
}

start_machine() {
    local name=$1 dir=$CLUSTER_DIR/$1 outer
    mkdir -p "$dir"
    (
        enter_cgroups "$name"
        exec setsid unshare --mount --uts --ipc --net --pid --cgroup --fork --kill-child \
            "$KUBERNETES_DIR/machine.sh" "$name" "$dir"
    ) </dev/null >"$dir/machine.log" 2>&1 9>&- &
    outer=$!
    # Its end is no news of this shell's.
    disown "$outer"
    echo "$outer" >"$dir/outer-pid"
    machine_forked() {
        [ "$(cat "/proc/$outer/comm")" = unshare ] && [ -n "$(cat "/proc/$outer/task/$outer/children")" ]
    }
    explain() { cat "$dir/machine.log" >&2; }
    wait_for 10 "the machine $name begins" machine_forked
    tr -d ' ' <"/proc/$outer/task/$outer/children" >"$dir/pid"
    wait_for 20 "the machine $name is up" on "$name" test -e /run/ready
    explain() { :; }
}

# Runs a command in a machine; its output and exit code are the command's.
on() {
    local name=$1
    shift
    nsenter --target "$(cat "$CLUSTER_DIR/$name/pid")" --mount --uts --ipc --net --pid --cgroup -- "$@"
}

# Keeps a program running in a machine: service MACHINE NAME COMMAND…; its log is $CLUSTER_DIR/MACHINE/disk/var/log/NAME.log
service() {
    local machine=$1 name=$2
    shift 2
    (
        enter_cgroups "$machine"
        on "$machine" setsid "$KUBERNETES_DIR/service.sh" "$name" "$@" || echo "service.sh ended with $?"
    ) </dev/null >"$CLUSTER_DIR/$machine/$name.start" 2>&1 9>&- &
    disown $!
}

# The last lines of services' logs: show_logs MACHINE NAME…; of a service without a log, why it did not start.
show_logs() {
    local machine=$1 name log
    shift
    for name in "$@"; do
        log=$CLUSTER_DIR/$machine/disk/var/log/$name.log
        if [ -e "$log" ]; then
            echo "==> $name of $machine, in $log"
            tail -n 20 "$log"
        else
            echo "==> $name of $machine has no log, because it did not start:"
            cat "$CLUSTER_DIR/$machine/$name.start" 2>/dev/null || echo "nothing has started it yet"
        fi
    done >&2
}

# Stops a service's program with a signal; it is started again at once.
restart_service() { on "$1" sh -c "kill -${3:-TERM} \$(cat /run/services/$2.pid)"; }

stop_machine() {
    local dir=$CLUSTER_DIR/$1 outer
    outer=$(cat "$dir/outer-pid" 2>/dev/null) || return 0
    # A killed run may have left the file, and its number may be another process' by now.
    tr '\0' ' ' 2>/dev/null <"/proc/$outer/cmdline" | grep -qF "machine.sh $1 $dir" || return 0
    # Its process 1 ends with it, and all others with that one.
    kill -KILL "$outer"
    machine_ended() { [ ! -e "/proc/$(cat "$dir/pid")" ]; }
    [ ! -s "$dir/pid" ] || wait_for 30 "the machine $1 ends" machine_ended
}

remove_cgroups() {
    find /sys/fs/cgroup/*/"$CLUSTER_CGROUP" -depth -type d -exec rmdir {} + 2>/dev/null || true
}

# Plugs a cable from a node into the bridge of `control`: the node gets 10.99.0.NUMBER, its pods 10.88.NUMBER.0/24.
connect_machine() {
    local name=$1 number=$2 pid
    pid=$(cat "$CLUSTER_DIR/$name/pid")
    in_network control ip link add "$name" type veth peer name eth0 netns "$pid"
    in_network control ip link set "$name" master bridge up
    in_network "$name" ip address add "10.99.0.$number/24" dev eth0
    in_network "$name" ip link set eth0 up
    in_network "$name" ip route add default via 10.99.0.1
    in_network control ip route add "10.88.$number.0/24" via "10.99.0.$number"
    on "$name" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
}

# Runs a command with a machine's network, and the processes and files of this one.
in_network() {
    local name=$1
    shift
    nsenter --target "$(cat "$CLUSTER_DIR/$name/pid")" --net -- "$@"
}
