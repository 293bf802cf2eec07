# The cargo workspaces of the checkout that are not the root one. Sourced.
#
# Guests have their own: they are built for wasm32-wasip1, with a lock file of their own. So has wasmtime's compiler
# (compiler/Cargo.toml says why).

GUEST_TARGET=wasm32-wasip1

# The target of a guests' workspace: components have their own.
guest_target() {
    case $1 in
    tests/guests/components) echo wasm32-wasip2 ;;
    *) echo "$GUEST_TARGET" ;;
    esac
}

workspaces() {
    local folder
    for folder in compiler guest-sdk/rust benches/guests benches/papers/guests tests/guests tests/guests/* workflows workflows/*; do
        if grep -qs '^\[workspace\]' "$CHECKOUT/$folder/Cargo.toml"; then echo "$folder"; fi
    done
}

# Where a workspace's programs for the host are built. The compiler's is that of build.sh.
host_target_dir() {
    case $1 in
    compiler) echo "$TARGET_DIR" ;;
    *) echo "$TARGET_DIR/host" ;;
    esac
}

# True for a workspace that builds for guests only.
guests_only() { [[ $1 == tests/guests* || $1 == benches/guests || $1 == benches/papers/guests ]]; }

# True for guests that only the papers' report runs.
papers_only() { [[ $1 == benches/papers/guests ]]; }
