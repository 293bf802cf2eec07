#!/bin/sh
# Puts the runtime on the node below /host, or takes it off: node.sh install|uninstall
#
# Runs in a privileged container of the DaemonSets of node.yaml, in the processes' namespace of the node. It only
# writes what it finds different, and restarts containerd only if its configuration has changed: pods go on. The
# environment is that of node.yaml.
set -eu

PREFIX=${PREFIX:-/usr/local}
CONTAINERD_CONFIG=${CONTAINERD_CONFIG:-/etc/containerd/config.toml}
CONTAINERD_RESTART=${CONTAINERD_RESTART:-systemctl restart containerd}
# The programs in the image; an image with WasmEdge has the last one and its libraries, too.
DIST=/cwasi
PROGRAMS="containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi-compiler"
WASMEDGE=cwasi-sandbox-wasmedge
config=/host$CONTAINERD_CONFIG
drop_in=/host$(dirname "$CONTAINERD_CONFIG")/conf.d/cwasi.toml
node_config=/host/etc/cwasi/config.toml
BEGIN='# BEGIN cwasi: written by its DaemonSet'
END='# END cwasi'
# First line of a configuration of the node that is ours to remove.
OURS='# From the ConfigMap cwasi-node.'

say() { echo "cwasi-node: $*"; }
fail() { echo "cwasi-node: error: $*" >&2; exit 1; }
on_host() { nsenter -t 1 -m -u -i -n -p -- "$@"; }

# Copies a file unless it is there, in one step: a running program cannot be written to.
put() {
    if cmp -s "$1" "$2"; then return; fi
    cp "$1" "$2.new"
    chmod 755 "$2.new"
    mv "$2.new" "$2"
    say "put ${2#/host}"
}

put_programs() {
    mkdir -p "/host$PREFIX/bin"
    put_wasmedge
    for program in $PROGRAMS; do put "$DIST/bin/$program" "/host$PREFIX/bin/$program"; done
    on_host "$PREFIX/bin/cwasi-sandbox" --version >/dev/null || fail "$PREFIX/bin/cwasi-sandbox does not" \
        "run on this node: the image is for another architecture than $(uname -m)"
}

put_wasmedge() {
    if [ ! -e "$DIST/bin/$WASMEDGE" ]; then
        remove_wasmedge
        return
    fi
    mkdir -p "/host$PREFIX/lib/cwasi"
    # The engine first: a program that is there can run.
    for file in "$DIST"/lib/*; do put "$file" "/host$PREFIX/lib/cwasi/$(basename "$file")"; done
    put "$DIST/bin/$WASMEDGE" "/host$PREFIX/bin/$WASMEDGE"
    on_host "$PREFIX/bin/$WASMEDGE" --version >/dev/null || fail "$PREFIX/bin/$WASMEDGE does not" \
        "run on this node: its glibc is older than that of the machine where this image was built"
}

remove_wasmedge() {
    rm -f "/host$PREFIX/bin/$WASMEDGE"
    rm -rf "/host$PREFIX/lib/cwasi"
}

put_node_config() {
    if [ ! -s /config/config.toml ]; then
        if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
        return
    fi
    mkdir -p "$(dirname "$node_config")"
    if [ -e "$node_config" ] && ! grep -qxF "$OURS" "$node_config"; then
        say "left $node_config alone: it is not from the ConfigMap"
        return
    fi
    { echo "$OURS"; cat /config/config.toml; } >"$node_config.new"
    chmod 600 "$node_config.new"
    if cmp -s "$node_config.new" "$node_config"; then rm "$node_config.new"; return; fi
    mv "$node_config.new" "$node_config"
    say "put /etc/cwasi/config.toml; containers that start from now on read it"
}

# The handler for containerd's CRI plugin, in the version of the node's configuration.
handler() {
    if grep -qE '^version *= *3' "$config"; then
        plugin='io.containerd.cri.v1.runtime'
    else
        plugin='io.containerd.grpc.v1.cri'
    fi
    runtimes="plugins.\"$plugin\".containerd.runtimes"
    # As runc's, so that both make cgroups in the same way.
    systemd=false
    ! grep -qE '^ *SystemdCgroup *= *true' "$config" || systemd=true
    # containerd has runc by itself only while its configuration names no runtime.
    if ! grep -qE 'runtimes\.runc\]' "$config"; then
        printf '[%s.runc]\n  runtime_type = "io.containerd.runc.v2"\n' "$runtimes"
    fi
    cat <<TOML
[$runtimes.cwasi]
  runtime_type = "io.containerd.cwasi.v1"
  pod_annotations = ["cwasi.*"]
  [$runtimes.cwasi.options]
    SystemdCgroup = $systemd
TOML
}

without_handler() { sed "/^$BEGIN\$/,/^$END\$/d" "$config"; }

has_drop_ins() { grep -qE '^ *imports *= *\[.*conf\.d/\*\.toml' "$config"; }

# Writes the handler.
put_handler() {
    if [ ! -e "$config" ]; then
        mkdir -p "$(dirname "$config")"
        version=2
        case $(on_host containerd --version) in *" v2."* | *" 2."*) version=3 ;; esac
        echo "version = $version" >"$config"
    fi
    if has_drop_ins; then
        mkdir -p "$(dirname "$drop_in")"
        target=$drop_in
        { grep -E '^version *=' "$config"; handler; } >/tmp/wanted
    else
        target=$config
        without_handler >/tmp/rest
        { cat /tmp/rest; echo "$BEGIN"; config=/tmp/rest handler; echo "$END"; } >/tmp/wanted
    fi
    if cmp -s /tmp/wanted "$target"; then return; fi
    cp /tmp/wanted "$target.new"
    mv "$target.new" "$target"
    is_changed=yes
    say "put the handler cwasi into ${target#/host}"
}

remove_handler() {
    if [ -e "$drop_in" ]; then
        rm "$drop_in"
    elif [ -e "$config" ] && grep -qxF "$BEGIN" "$config"; then
        without_handler >"$config.new"
        mv "$config.new" "$config"
    else
        return 0
    fi
    is_changed=yes
    say "removed the handler cwasi"
}

# containerd reads its configuration when it starts.
restart_containerd() {
    [ -n "$is_changed" ] || return 0
    say "restarting containerd: $CONTAINERD_RESTART"
    on_host sh -c "$CONTAINERD_RESTART" || fail "containerd was not restarted: set CONTAINERD_RESTART in node.yaml"
}

install() {
    put_programs
    put_node_config
    put_handler
    restart_containerd
    say "installed"
}

uninstall() {
    if ls /host/run/cwasi/g/* >/dev/null 2>&1; then
        fail "functions still run on this node: drain it, then this container's next start goes on"
    fi
    remove_handler
    restart_containerd
    for program in $PROGRAMS; do rm -f "/host$PREFIX/bin/$program"; done
    remove_wasmedge
    rm -rf /host/var/lib/cwasi/aot /host/run/cwasi
    if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
    say "uninstalled"
}

is_changed=
mkdir -p /tmp
case ${1:-} in
install | uninstall) "$1" ;;
*) fail "use install or uninstall" ;;
esac
touch /tmp/done
# The DaemonSet keeps it running; it ends at once when it is asked to.
trap 'exit 0' TERM
while :; do
    sleep 3600 &
    wait $!
done
