#!/usr/bin/env bash
# Pictures of the dashboard and of `cwasi trace --html`, for a person to look at: target/screenshots/*.png, at a phone's
# and a desk's width, light and dark. Functions run on a private containerd and call each other meanwhile; Chromium has no network beside this machine.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

PORT=${PORT:-8099}
PICTURES=$TARGET_DIR/screenshots
PROGRAMS=$TARGET_DIR/debug
# Three calls with two sides each.
SPANS=6

if [ -z "${CWASI_BED:-}" ]; then
    exec "$PROGRAMS/cwasi-testbed" with -- "$CHECKOUT/scripts/screenshots.sh"
fi

# Chromium's clock stands still while the page waits for its data; after eight seconds of it, it takes the picture.
picture() {
    local name=$1 page=$2 width=$3 height=$4
    shift 4
    timeout 120 chromium --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
        --user-data-dir="$profile" --window-size="$width,$height" --virtual-time-budget=8000 "$@" \
        --screenshot="$PICTURES/$name.png" "$page" >"$profile/log" 2>&1 ||
        { cat "$profile/log" >&2; die "no picture $name"; }
    [ -s "$PICTURES/$name.png" ] || die "no picture $name"
    say "$PICTURES/$name.png"
}

mkdir -p "$PICTURES"
profile=$(mktemp -d)
"$PROGRAMS/cwasi" deploy "$CHECKOUT/tests/support/dashboard.yaml"
"$PROGRAMS/cwasi" dashboard --listen "127.0.0.1:$PORT" 2>"$profile/dashboard" &
dashboard=$!
"$PROGRAMS/cwasi" gateway --listen "127.0.0.1:$((PORT + 1))" 2>"$profile/gateway" &
gateway=$!
(
    while :; do
        curl --silent --data page "http://127.0.0.1:$((PORT + 1))/function/front" >/dev/null || true
        for greeting in one two three; do
            "$PROGRAMS/cwasi" invoke front --data "$greeting" >/dev/null || true
        done
        "$PROGRAMS/cwasi" invoke front --data '!fail no' >/dev/null 2>&1 || true
    done
) &
callers=$!
trap 'kill "$dashboard" "$gateway" "$callers" 2>/dev/null || true; "$PROGRAMS/cwasi" rm --workflow shop >/dev/null || true; rm -rf "$profile"' EXIT
token=
for _ in $(seq 300); do
    token=$(sed -n 's/^cwasi dashboard: .*#//p' "$profile/dashboard")
    curl --silent --oauth2-bearer "$token" "http://127.0.0.1:$PORT/api/state" | grep -q '"calls_per_second":[1-9]' && break
    sleep 0.1
done
# A whole run.
"$PROGRAMS/cwasi" run --json "$CHECKOUT/workflows/hello/workflow.yaml" >"$profile/run" 2>/dev/null
"$PROGRAMS/cwasi" trace "$(grep -oE '"run": *"[0-9a-f]{32}' "$profile/run" | grep -oE '[0-9a-f]{32}')" --html "$profile/run.html"
# The newest trace is a call through all functions, and the page opens it.
"$PROGRAMS/cwasi" invoke front --data '!fail no' --trace >/dev/null 2>&1 || true
"$PROGRAMS/cwasi" invoke front --data order --trace >/dev/null 2>"$profile/told"
trace=$(grep -oE '[0-9a-f]{32}' "$profile/told" | head -1) || die "no trace: $(cat "$profile/told")"
spans() { curl --silent --oauth2-bearer "$token" "http://127.0.0.1:$PORT/api/traces/$trace" | grep -oE '"spans":[0-9]+' || true; }
for _ in $(seq 300); do
    [ "$(spans)" = "\"spans\":$SPANS" ] && break
    sleep 0.1
done
[ "$(spans)" = "\"spans\":$SPANS" ] || die "trace $trace has $(spans) instead of $SPANS"
"$PROGRAMS/cwasi" trace "$trace" --html "$profile/trace.html"
dark=(--force-dark-mode --enable-features=WebContentsForceDark:inversion_method/none)
pictures() {
    local suffix=$1 width=$2 page_height=$3 trace_height=$4
    shift 4
    picture "dashboard-$suffix" "http://127.0.0.1:$PORT/#$token" "$width" "$page_height" "$@"
    picture "trace-$suffix" "file://$profile/trace.html" "$width" "$trace_height" "$@"
    picture "run-$suffix" "file://$profile/run.html" "$width" "$trace_height" "$@"
}
pictures 390 390 1400 500
pictures 390-dark 390 1400 500 "${dark[@]}"
pictures 1280 1280 900 340
pictures 1280-dark 1280 900 340 "${dark[@]}"
