# TinyGo, with which the operator paper compiled its functions in Go: built from its Go module with Debian's Go and LLVM
# below .cwasi/tinygo, for scripts/papers.sh alone. Sourced after go.sh and unpacked.sh.
#
# Its module lacks what its repository has as submodules: wasi-libc is Debian's, unpacked with clang (languages.sh), and
# `net` stays the standard library's, of which the functions use net/url. target.json has the artifact's options: the
# target WASI, no collector (`leaking`: each request has a new instance), the scheduler that gonum's goroutines need.

TINYGO_DIR=$STATE_DIR/tinygo
TINYGO_MODULE=$CHECKOUT/scripts/tinygo
TINYGO_VERSION=$(sed -nE 's#^require github.com/tinygo-org/tinygo (v.*)#\1#p' "$TINYGO_MODULE/go.mod")
# libLLVM is the machine's, as for clang.
TINYGO_LLVM="tinygo-llvm trixie 1:19.1 llvm-19-dev libclang-19-dev libclang1-19 binaryen"

tinygo_digest() { cat "$TINYGO_MODULE"/* | sha256sum | cut -c 1-16; }

build_tinygo() {
    local folder=$TINYGO_DIR/go llvm=$STATE_DIR/tinygo-llvm libllvm started=$SECONDS
    [ "$(cat "$TINYGO_DIR/VERSION" 2>/dev/null)" != "$(tinygo_digest)" ] || return 0
    [ -d "$STATE_DIR/clang/usr/lib/wasm32-wasi" ] || die "there is no clang below $STATE_DIR: scripts/setup.sh --languages"
    libllvm=$(tinygo_libllvm)
    [ -n "$libllvm" ] || die "there is no libLLVM 19: scripts/setup.sh --wasmedge"
    rm -rf "$TINYGO_DIR" "$llvm"
    UNPACKED=("$TINYGO_LLVM")
    unpack_missing
    say "building TinyGo $TINYGO_VERSION from its Go module: about 2 minutes"
    mkdir -p "$TINYGO_DIR"/{bin,lib,root}
    (
        go_environment "$folder"
        export CGO_ENABLED=1 CGO_CPPFLAGS="-I$llvm/usr/include/llvm-19 -I$llvm/usr/include/llvm-c-19 -I$llvm/usr/lib/llvm-19/include"
        export CGO_LDFLAGS="-L$llvm/usr/lib/llvm-19/lib -L$libllvm"
        cd "$TINYGO_MODULE"
        go build -trimpath -buildvcs=false -tags llvm19 -ldflags='-s -w' -o "$TINYGO_DIR/bin/tinygo" \
            github.com/tinygo-org/tinygo 2> >(grep -v '^go: downloading' >&2)
        cp -r "$(go list -m -f '{{.Dir}}' github.com/tinygo-org/tinygo)"/{src,targets} "$TINYGO_DIR/root/"
    ) || die "TinyGo $TINYGO_VERSION is not built: Go needs the proxy of modules that GOPROXY names"
    chmod -R u+w "$TINYGO_DIR/root"
    # Empty: TinyGo takes the standard library's files.
    mkdir -p "$TINYGO_DIR/root/src/net"
    ln -s ../../clang/usr "$TINYGO_DIR/root/sysroot"
    cp -a "$llvm"/usr/bin/wasm-opt "$TINYGO_DIR/bin/"
    cp -a "$llvm"/usr/lib/*-linux-gnu/{libclang-19,libbinaryen}* "$TINYGO_DIR/lib/"
    remove_go_folder "$folder"
    rm -rf "$llvm"
    tinygo_digest >"$TINYGO_DIR/VERSION"
    say "TinyGo is built: $((SECONDS - started)) s"
}

# The folder of the machine's libLLVM.
tinygo_libllvm() { ldconfig -p | sed -nE 's#.*libLLVM\.so\.19\.1 .* => (.*)/.*#\1#p' | head -n 1; }

# tinygo ARGUMENT…: in the environment of `go_environment`
tinygo() {
    TINYGOROOT=$TINYGO_DIR/root PATH=$TINYGO_DIR/bin:$STATE_DIR/clang/usr/bin:$PATH \
        LD_LIBRARY_PATH=$TINYGO_DIR/lib:$(echo "$STATE_DIR"/clang/usr/lib/*-linux-gnu) "$TINYGO_DIR/bin/tinygo" "$@"
}
