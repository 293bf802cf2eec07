# wasmtime's own command, whose `wasmtime serve` is a side of papers.sh. Sourced.

WASMTIME_DIR=$STATE_DIR/wasmtime
# The version of the engine that the runtime links.
WASMTIME_VERSION=$(sed -n '/^name = "wasmtime"$/{n;s/version = "\(.*\)"/\1/p}' "$CHECKOUT/Cargo.lock")

install_wasmtime() {
    grep -qs "^\"wasmtime-cli $WASMTIME_VERSION " "$WASMTIME_DIR/.crates.toml" && return
    say "building wasmtime-cli $WASMTIME_VERSION into $WASMTIME_DIR: ten minutes"
    (cd "$CHECKOUT" && cargo install --quiet --locked --version "$WASMTIME_VERSION" --root "$WASMTIME_DIR" \
        --target-dir "$TARGET_DIR/wasmtime" --no-default-features \
        --features run,serve,cranelift,pooling-allocator,parallel-compilation,component-model-async wasmtime-cli >&2)
    rm -rf "$TARGET_DIR/wasmtime"
}
