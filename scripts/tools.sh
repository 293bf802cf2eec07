# What only the checks need. Sourced by `setup.sh --lint`, `--miri`, `--fuzz` and by the scripts of these checks.
#
# - cargo-deny, and cargo-fuzz for `make fuzz`, built from source below .cwasi/tools: no registry that every machine
#   reaches has current programs of them. libFuzzer is C++.
# - A nightly toolchain, for Miri. Nothing else is built with it.

TOOLS_DIR=$STATE_DIR/tools
# name and version
CARGO_DENY="cargo-deny 0.20.2"
CARGO_FUZZ="cargo-fuzz 0.13.2"
# Those of this set-up.
TOOLS=()
NIGHTLY=nightly-2026-05-20
NIGHTLY_COMPONENTS=(miri rust-src)

missing_tools() {
    local name version
    for tool in "${TOOLS[@]}"; do
        read -r name version <<<"$tool"
        grep -qs "^\"$name $version " "$TOOLS_DIR/.crates.toml" || echo "$name-$version"
    done
}

miri_is_there() {
    local sysroot component
    # rustup installs nothing when it is asked where something is.
    sysroot=$(RUSTUP_AUTO_INSTALL=0 rustup run "$NIGHTLY" rustc --print sysroot 2>/dev/null) || return 1
    for component in "${NIGHTLY_COMPONENTS[@]}"; do
        grep -qs "^$component" "$sysroot/lib/rustlib/components" || return 1
    done
}

install_miri() {
    local components
    command -v rustup >/dev/null || die "Miri needs rustup (https://rustup.rs)"
    components=$(printf -- ' -c %s' "${NIGHTLY_COMPONENTS[@]}")
    say "installing $NIGHTLY with ${NIGHTLY_COMPONENTS[*]}"
    # shellcheck disable=SC2086 # one word per option
    rustup toolchain install "$NIGHTLY" --profile minimal $components --no-self-update >&2
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
