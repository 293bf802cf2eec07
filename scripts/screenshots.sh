#!/usr/bin/env bash
# Pictures of the dashboard, for a person to look at: target/screenshots/*.png, at a phone's and a desk's width, light and
# dark. Functions run on a private containerd and call each other meanwhile; Chromium has no network beside this machine.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

PORT=${PORT:-8099}
PICTURES=$TARGET_DIR/screenshots
PROGRAMS=$TARGET_DIR/debug

if [ -z "${CWASI_BED:-}" ]; then
    exec "$PROGRAMS/cwasi-testbed" with -- "$CHECKOUT/scripts/screenshots.sh"
fi

# Chromium's clock stands still while the page waits for its data; after eight seconds of it, it takes the picture.
picture() {
    local name=$1 width=$2 height=$3
    shift 3
    timeout 120 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
        --user-data-dir="$profile" --window-size="$width,$height" --virtual-time-budget=8000 "$@" \
        --screenshot="$PICTURES/$name.png" "http://127.0.0.1:$PORT/" >"$profile/log" 2>&1 ||
        { cat "$profile/log" >&2; die "no picture $name"; }
    [ -s "$PICTURES/$name.png" ] || die "no picture $name"
    say "$PICTURES/$name.png"
}

mkdir -p "$PICTURES"
profile=$(mktemp -d)
"$PROGRAMS/cwasi" deploy "$CHECKOUT/tests/support/dashboard.yaml"
"$PROGRAMS/cwasi" dashboard --listen "127.0.0.1:$PORT" 2>"$profile/dashboard" &
dashboard=$!
(
    while :; do
        for greeting in one two three; do
            "$PROGRAMS/cwasi" invoke front --data "$greeting" >/dev/null || true
        done
        "$PROGRAMS/cwasi" invoke front --data '!fail no' >/dev/null 2>&1 || true
    done
) &
callers=$!
trap 'kill "$dashboard" "$callers" 2>/dev/null || true; "$PROGRAMS/cwasi" rm --workflow shop >/dev/null || true; rm -rf "$profile"' EXIT
for _ in $(seq 300); do
    curl --silent "http://127.0.0.1:$PORT/api/state" | grep -q '"calls_per_second":[1-9]' && break
    sleep 0.1
done
for width in 390 1280; do
    height=$([ "$width" = 390 ] && echo 1000 || echo 680)
    picture "dashboard-$width" "$width" "$height"
    picture "dashboard-$width-dark" "$width" "$height" --force-dark-mode --enable-features=WebContentsForceDark:inversion_method/none
done
