#!/usr/bin/env bash
# Builds the nine functions of workflows/functions: target/functions/NAME.wasm, and the native server
# target/functions/NAME of the same source, unoptimized. `functions.sh --static` builds optimized servers that need no
# library (setup.sh --static): images of them have nothing else. `functions.sh --tinygo` builds only those in Go once more,
# by TinyGo: target/functions/tinygo/NAME.wasm, for scripts/papers.sh.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/go.sh"
source "$CHECKOUT/scripts/static.sh"
OUT=$TARGET_DIR/functions
GO_FUNCTIONS=(aes float-operation linear-equations matmul)

if [ "${1-}" = --tinygo ]; then
    source "$CHECKOUT/scripts/unpacked.sh"
    source "$CHECKOUT/scripts/tinygo.sh"
    build_tinygo
    mkdir -p "$OUT/tinygo"
    say "building ${GO_FUNCTIONS[*]} with TinyGo"
    cd "$CHECKOUT/workflows/functions"
    go_environment "$STATE_DIR/functions-go"
    for name in "${GO_FUNCTIONS[@]}"; do
        tinygo build -target="$TINYGO_MODULE/target.json" -no-debug -o "$OUT/tinygo/$name.wasm" "./$name"
    done
    exit
fi

# With the workspace's own tests.
native=(--target-dir "$TARGET_DIR/host") servers=$TARGET_DIR/host/debug
if [ "${1-}" = --static ]; then
    native=(--release --target "$STATIC_TARGET" --target-dir "$OUT/cargo")
    servers=$OUT/cargo/$STATIC_TARGET/release
fi
mkdir -p "$OUT"

say "building the nine functions: components and native servers in Rust"
cd "$CHECKOUT/workflows/functions"
cargo build --release --workspace --exclude function --lib --target wasm32-wasip2 --target-dir "$OUT/cargo"
cargo build --workspace --bins "${native[@]}"
for name in fuzzysearch n-body prime-numbers user-manager whatlang; do
    library=${name//-/_}
    # The crate that it uses has its name.
    [ "$name" != whatlang ] || library=whatlang_function
    ln -f "$OUT/cargo/wasm32-wasip2/release/$library.wasm" "$OUT/$name.wasm"
    ln -f "$servers/$name-server" "$OUT/$name"
done

say "building the nine functions: modules and native servers in Go"
go_environment "$STATE_DIR/functions-go"
for name in "${GO_FUNCTIONS[@]}"; do
    GOOS=wasip1 GOARCH=wasm go build -trimpath -ldflags='-s -w' -buildmode=c-shared -o "$OUT/$name.wasm" "./$name"
    go build -trimpath -ldflags='-s -w' -o "$OUT/$name" "./$name"
done
