#!/usr/bin/env bash
# Writes the image of the operator, the static program and nothing else: operator-image.sh OUT.tar [REFERENCE]
# (PROFILE=release: the optimized one)
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/static.sh"

out=$1 reference=${2:-localhost/cwasi-operator:latest}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$CHECKOUT/scripts/install.sh" "$STATIC_PROGRAMS/${PROFILE:-debug}" "$folder" cwasi-operator
"$TARGET_DIR/debug/cwasi-testbed" image "$out" "$reference" --file "$folder/cwasi-operator:/cwasi-operator" \
    --entrypoint /cwasi-operator
