#!/bin/sh
# Puts the runtime on the node below /host, or takes it off: node.sh install|uninstall
#
# Runs in a privileged container of the DaemonSets of node.yaml, in the processes' namespace of the node. It only
# writes what it finds different, and restarts containerd only if its configuration has changed: pods go on. The
# environment is that of node.yaml: empty values are found out (containerd.sh). ROOT is the container's root; a test
# has one of its own.
set -eu

PREFIX=${PREFIX:-/usr/local}
CONTAINERD_CONFIG=${CONTAINERD_CONFIG:-}
CONTAINERD_RESTART=${CONTAINERD_RESTART:-}
ROOT=${ROOT:-}
HOST=$ROOT/host
# The programs in the image; an image with WasmEdge has the last one and its libraries, too.
DIST=$ROOT/cwasi
PROGRAMS="containerd-shim-cwasi-v1 cwasi-shim cwasi-sandbox cwasi-compiler"
WASMEDGE=cwasi-sandbox-wasmedge
node_config=$HOST/etc/cwasi/config.toml
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
    say "put ${2#"$HOST"}"
}

put_programs() {
    mkdir -p "$HOST$PREFIX/bin"
    put_wasmedge
    for program in $PROGRAMS; do put "$DIST/bin/$program" "$HOST$PREFIX/bin/$program"; done
    on_host "$PREFIX/bin/cwasi-sandbox" --version >/dev/null || fail "$PREFIX/bin/cwasi-sandbox does not" \
        "run on this node: the image is for another architecture than $(uname -m)"
}

put_wasmedge() {
    if [ ! -e "$DIST/bin/$WASMEDGE" ]; then
        remove_wasmedge
        return
    fi
    mkdir -p "$HOST$PREFIX/lib/cwasi"
    # The engine first: a program that is there can run.
    for file in "$DIST"/lib/*; do put "$file" "$HOST$PREFIX/lib/cwasi/$(basename "$file")"; done
    put "$DIST/bin/$WASMEDGE" "$HOST$PREFIX/bin/$WASMEDGE"
    on_host "$PREFIX/bin/$WASMEDGE" --version >/dev/null || fail "$PREFIX/bin/$WASMEDGE does not" \
        "run on this node: its glibc is older than that of the machine where this image was built"
}

remove_wasmedge() {
    rm -f "$HOST$PREFIX/bin/$WASMEDGE"
    rm -rf "$HOST$PREFIX/lib/cwasi"
}

put_node_config() {
    if [ ! -s "$ROOT/config/config.toml" ]; then
        if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
        return
    fi
    mkdir -p "$(dirname "$node_config")"
    if [ -e "$node_config" ] && ! grep -qxF "$OURS" "$node_config"; then
        say "left ${node_config#"$HOST"} alone: it is not from the ConfigMap"
        return
    fi
    { echo "$OURS"; cat "$ROOT/config/config.toml"; } >"$node_config.new"
    chmod 600 "$node_config.new"
    if cmp -s "$node_config.new" "$node_config"; then rm "$node_config.new"; return; fi
    mv "$node_config.new" "$node_config"
    say "put /etc/cwasi/config.toml; containers that start from now on read it"
}

install() {
    put_programs
    put_node_config
    put_handler
    restart_containerd
    say "installed"
}

uninstall() {
    if ls "$HOST"/run/cwasi/g/* >/dev/null 2>&1; then
        fail "functions still run on this node: drain it, then this container's next start goes on"
    fi
    remove_handlers
    restart_containerd
    for program in $PROGRAMS; do rm -f "$HOST$PREFIX/bin/$program"; done
    remove_wasmedge
    rm -rf "$HOST/var/lib/cwasi/aot" "$HOST/run/cwasi"
    if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
    say "uninstalled"
}

mkdir -p "$ROOT/tmp"
# shellcheck source=deploy/kubernetes/node/containerd.sh
. "$DIST/containerd.sh"
case ${1:-} in
install | uninstall) ;;
*) fail "use install or uninstall" ;;
esac
find_containerd
choose_target
say "found $found: its configuration is $config, the handler's place $target"
"$1"
# The DaemonSet keeps it running; it ends at once when it is asked to, also while no sleep runs yet.
trap 'kill "${!:-}" 2>/dev/null || true; exit 0' TERM
touch "$ROOT/tmp/done"
while :; do
    sleep 60 &
    wait $!
done
