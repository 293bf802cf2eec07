#!/usr/bin/env bash
# The test of exported traces with an OpenTelemetry Collector between the runtime and the test's own receiver.
#
# The first run builds the Collector (tests/collector) from its Go modules, with Debian's Go below .cwasi/. Later runs
# begin at once.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
source "$CHECKOUT/scripts/go.sh"

SOURCES=$CHECKOUT/tests/collector
COLLECTOR=$STATE_DIR/collector

build_collector() {
    local digest folder=$COLLECTOR/go started=$SECONDS
    digest=$(cat "$SOURCES"/{main.go,go.mod,go.sum} | sha256sum | cut -c 1-16)
    [ "$(cat "$COLLECTOR/VERSION" 2>/dev/null)" != "$digest" ] || return 0
    unpack_for_kubernetes go
    say "building the OpenTelemetry Collector from its Go modules"
    mkdir -p "$COLLECTOR"
    (
        cd "$SOURCES"
        go_environment "$folder"
        go build -trimpath -buildvcs=false -ldflags "-s -w" -o "$COLLECTOR/collector" .
    )
    remove_go_folder "$folder"
    echo "$digest" >"$COLLECTOR/VERSION"
    say "the Collector is built: $((SECONDS - started)) s"
}

build_collector
cd "$CHECKOUT"
"$CHECKOUT/scripts/build.sh" -p cwasi-testbed
CWASI_COLLECTOR=$COLLECTOR/collector cargo test --test e2e -- receiver_of_otlp
