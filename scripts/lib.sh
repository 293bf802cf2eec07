# Paths and messages that all scripts share. Sourced, never run.

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
STATE_DIR=$CHECKOUT/.cwasi
TARGET_DIR=${CARGO_TARGET_DIR:-$CHECKOUT/target}
# Of ca-certificates (setup.sh).
CERTIFICATES=/etc/ssl/certs/ca-certificates.crt

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() {
    printf '\033[1;31merror:\033[0m %s\n' "$*" >&2
    exit 1
}

# Runs a command in a session of its own, which ends with this script after `sessions_end_here`. One at a time.
in_session() {
    local code=0
    # In the background setsid leads no group, so that it makes the session itself instead of in a child.
    setsid "$@" &
    session_pid=$!
    wait "$session_pid" || code=$?
    session_pid=
    return "$code"
}

end_session() { [ -z "${session_pid:-}" ] || kill -- "-$session_pid" 2>/dev/null || true; }

sessions_end_here() {
    trap end_session EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
}

# Builds from here on are clippy and rustdoc, too. Cargo compares CLIPPY_ARGS, as Clippy has it do: without it every crate
# would be built again.
lint_with_builds() {
    export RUSTC_WORKSPACE_WRAPPER=$CHECKOUT/scripts/rustc-lint.sh
    export CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
}
