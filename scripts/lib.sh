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
