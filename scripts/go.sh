# Programs that are built from their Go modules with Debian's Go below .cwasi/ (unpacked.sh). Sourced.

# go_environment FOLDER: for Go commands of this shell; modules and intermediate results go below the folder
go_environment() {
    export CGO_ENABLED=0 GOTOOLCHAIN=local GOFLAGS=-mod=readonly GOWORK=off
    export GOROOT=$STATE_DIR/go/usr/lib/go-1.24 GOCACHE=$1/cache GOMODCACHE=$1/modules
    export PATH=$GOROOT/bin:$PATH
}

# The folder is of no use once the programs are built; Go makes modules read-only.
remove_go_folder() {
    chmod -R u+w "$1"
    rm -rf "$1"
}

# go_digest FOLDER: of what pins the versions in a module's folder
go_digest() { cat "$1"/go.{mod,sum} | sha256sum | cut -c 1-16; }
