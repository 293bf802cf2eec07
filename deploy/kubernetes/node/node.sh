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
OURS='# From the Secret cwasi-node.'

say() { echo "cwasi-node: $*"; }
fail() { echo "cwasi-node: error: $*" >&2; exit 1; }
on_host() { nsenter -t 1 -m -u -i -n -p -- "$@"; }

# stage FILE TARGET: copies a file as TARGET.new, unless TARGET is the same
stage() {
    rm -f "$2.new"
    if cmp -s "$1" "$2"; then return; fi
    cp "$1" "$2.new"
    chmod 755 "$2.new"
}

# Puts a staged file in its place, in one step: a running program cannot be written to.
commit() {
    if [ ! -e "$1.new" ]; then return; fi
    mv "$1.new" "$1"
    say "put ${1#"$HOST"}"
}

# The programs that are there stay until all of the new ones are known to run.
put_programs() {
    mkdir -p "$HOST$PREFIX/bin"
    for program in $PROGRAMS; do stage "$DIST/bin/$program" "$HOST$PREFIX/bin/$program"; done
    on_host "$(newest cwasi-sandbox)" --version >/dev/null || discard "cwasi-sandbox does not run on this node: the image" \
        "is for another architecture than $(uname -m)"
    put_wasmedge
    for program in $PROGRAMS; do commit "$HOST$PREFIX/bin/$program"; done
}

# discard WORD…: fails, and leaves nothing of the new programs
discard() {
    for program in $PROGRAMS $WASMEDGE; do rm -f "$HOST$PREFIX/bin/$program.new"; done
    rm -rf "$HOST$PREFIX/lib/cwasi.new"
    fail "$@"
}

# newest PROGRAM: its path on the node, the staged one's if there is one
newest() {
    if [ -e "$HOST$PREFIX/bin/$1.new" ]; then echo "$PREFIX/bin/$1.new"; else echo "$PREFIX/bin/$1"; fi
}

put_wasmedge() {
    if [ ! -e "$DIST/bin/$WASMEDGE" ]; then
        remove_wasmedge
        return
    fi
    libraries=$PREFIX/lib/cwasi
    rm -rf "$HOST$libraries.new"
    mkdir -p "$HOST$libraries" "$HOST$libraries.new"
    for file in "$DIST"/lib/*; do
        cmp -s "$file" "$HOST$libraries/$(basename "$file")" || cp "$file" "$HOST$libraries.new"
    done
    stage "$DIST/bin/$WASMEDGE" "$HOST$PREFIX/bin/$WASMEDGE"
    on_host env LD_LIBRARY_PATH="$libraries.new:$libraries" "$(newest "$WASMEDGE")" --version >/dev/null ||
        discard "$WASMEDGE does not run on this node: its glibc is older than that of the machine where this image was built"
    # The engine first: a program that is there can run.
    for file in "$HOST$libraries.new"/*; do
        [ ! -e "$file" ] || mv "$file" "$HOST$libraries"
    done
    rmdir "$HOST$libraries.new"
    commit "$HOST$PREFIX/bin/$WASMEDGE"
}

remove_wasmedge() {
    rm -f "$HOST$PREFIX/bin/$WASMEDGE" "$HOST$PREFIX/bin/$WASMEDGE.new"
    rm -rf "$HOST$PREFIX/lib/cwasi" "$HOST$PREFIX/lib/cwasi.new"
}

put_node_config() {
    if [ ! -s "$ROOT/config/config.toml" ]; then
        if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
        return
    fi
    mkdir -p "$(dirname "$node_config")"
    if [ -e "$node_config" ] && ! grep -qxF "$OURS" "$node_config"; then
        say "left ${node_config#"$HOST"} alone: it is not from the Secret"
        return
    fi
    { echo "$OURS"; cat "$ROOT/config/config.toml"; } >"$node_config.new"
    chmod 600 "$node_config.new"
    if cmp -s "$node_config.new" "$node_config"; then rm "$node_config.new"; return; fi
    if ! fault=$("$DIST/bin/cwasi" doctor --config "$node_config.new" 2>&1); then
        rm "$node_config.new"
        fail "the Secret cwasi-node has a fault, and this node keeps its configuration: $fault"
    fi
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

# setting NAME DEFAULT: a folder of the node's configuration
setting() {
    value=$(sed -nE "s/^ *$1 *= *[\"']([^\"']+)[\"'].*/\1/p" "$node_config" 2>/dev/null | head -n 1)
    echo "$HOST${value:-$2}"
}

# A function's shim or sandbox runs. Folders tell nothing: those of a command that was killed stay.
runs_functions() {
    for process in "$ROOT"/proc/[0-9]*; do
        case $(readlink "$process/exe" 2>/dev/null) in
        */cwasi-shim* | */cwasi-sandbox* | */containerd-shim-cwasi-v1*) return 0 ;;
        esac
    done
    return 1
}

uninstall() {
    if runs_functions; then
        fail "functions still run on this node: drain it, then this container's next start goes on"
    fi
    remove_handlers
    restart_containerd
    for program in $PROGRAMS; do rm -f "$HOST$PREFIX/bin/$program" "$HOST$PREFIX/bin/$program.new"; done
    remove_wasmedge
    cache=$(setting cache_dir /var/lib/cwasi)
    rm -rf "$cache/aot" "$refused"
    state=$(setting state_dir /run/cwasi)
    # One of the user's may have other files in it.
    if [ "$state" = "$HOST/run/cwasi" ]; then
        rm -rf "$state"
    else
        rm -rf "$state/g"
        rmdir "$state" 2>/dev/null || say "left the state_dir ${state#"$HOST"}: delete it, or restart the node"
    fi
    if grep -qsxF "$OURS" "$node_config"; then rm "$node_config"; fi
    # Unless something else is in them: callbacks of a gateway that were not delivered, a key.
    rmdir "$cache" "$(dirname "$node_config")" 2>/dev/null || true
    say "uninstalled"
}

mkdir -p "$ROOT/tmp"
# shellcheck source=deploy/kubernetes/node/containerd.sh
. "$DIST/containerd.sh"
rm -rf "$BEFORE" "$ROOT/tmp/handler"
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
