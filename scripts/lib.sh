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

# Runs a command in a session of its own, and ends that with this script. One at a time.
in_session() {
    # In the background setsid leads no group, so that it makes the session itself instead of in a child.
    setsid "$@" &
    local leader=$! code=0
    # shellcheck disable=SC2064 # this leader
    trap "kill -- -$leader 2>/dev/null; exit 130" INT TERM
    wait "$leader" || code=$?
    trap - INT TERM
    return "$code"
}
