# What only the checks need. Sourced by `setup.sh --lint`, `setup.sh --fuzz` and by the scripts of these checks.
#
# - cargo-deny, and cargo-fuzz for `make fuzz`, built from source below .cwasi/tools: no registry that every machine
#   reaches has current programs of them. libFuzzer is C++.
# - A nightly toolchain, for Miri. Nothing else is built with it.
# - The standard library and compilers of C and C++ for 64-bit ARM, for which the runtime is linted.

TOOLS_DIR=$STATE_DIR/tools
# name and version
CARGO_DENY="cargo-deny 0.20.2"
CARGO_FUZZ="cargo-fuzz 0.13.2"
# Those of this set-up.
TOOLS=()
NIGHTLY=nightly-2026-05-20
NIGHTLY_COMPONENTS=(miri rust-src)
ARM64=aarch64-unknown-linux-gnu
ARM64_PACKAGES="g++-aarch64-linux-gnu libc6-dev-arm64-cross"

missing_tools() {
    local name version
    for tool in "${TOOLS[@]}"; do
        read -r name version <<<"$tool"
        grep -qs "^\"$name $version " "$TOOLS_DIR/.crates.toml" || echo "$name-$version"
    done
}

# What rustup is to install: toolchains and targets, one on each line.
missing_toolchains() {
    local sysroot component
    # rustup installs nothing when it is asked where something is.
    sysroot=$(RUSTUP_AUTO_INSTALL=0 rustup run "$NIGHTLY" rustc --print sysroot 2>/dev/null || true)
    for component in "${NIGHTLY_COMPONENTS[@]}"; do
        grep -qs "^$component" "$sysroot/lib/rustlib/components" || echo "$NIGHTLY"
    done | sort -u
    sysroot=$(cd "$CHECKOUT" && RUSTUP_AUTO_INSTALL=0 rustc --print sysroot 2>/dev/null || true)
    [ -d "$sysroot/lib/rustlib/$ARM64" ] || echo "$ARM64"
}

missing_check_packages() {
    command -v shellcheck >/dev/null || echo shellcheck
    command -v c++ >/dev/null || echo "g++"
    missing_cross_compiler
}

# On such a machine the ordinary compiler is the one.
missing_cross_compiler() {
    [ "$(uname -m)" = aarch64 ] || command -v aarch64-linux-gnu-g++ >/dev/null || echo "$ARM64_PACKAGES"
}

install_toolchains() {
    local components
    command -v rustup >/dev/null || die "Miri and the check for 64-bit ARM need rustup (https://rustup.rs)"
    components=$(printf -- ' -c %s' "${NIGHTLY_COMPONENTS[@]}")
    say "installing $NIGHTLY with ${NIGHTLY_COMPONENTS[*]}, and the standard library for $ARM64"
    # shellcheck disable=SC2086 # one word per option
    rustup toolchain install "$NIGHTLY" --profile minimal $components --no-self-update >&2
    (cd "$CHECKOUT" && rustup target add "$ARM64" >&2)
}

# Unoptimized and without debug information: they run for seconds, and optimizing takes longer than it saves.
install_tools() {
    local name version
    for tool in "${TOOLS[@]}"; do
        read -r name version <<<"$tool"
        say "building $name $version into $TOOLS_DIR"
        (cd "$CHECKOUT" && CARGO_PROFILE_DEV_DEBUG=0 cargo install --quiet --debug --locked --version "$version" \
            --root "$TOOLS_DIR" --target-dir "$TARGET_DIR/tools" "$name" >&2)
    done
    rm -rf "$TARGET_DIR/tools"
}
