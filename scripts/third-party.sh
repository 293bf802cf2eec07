#!/usr/bin/env bash
# The changed copies of crates in third_party/: each is a release of crates.io with the patches of
# third_party/patches/NAME-VERSION, and without the tests, which nothing here compiles.
#
#   third-party.sh check   compares the copies with that
#   third-party.sh write   makes them anew, for example after a patch was changed
#
# A copy's Cargo.toml is ours. Cargo brings the release.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
action=${1:?usage: third-party.sh check|write}
# What copies leave out: files of features that their Cargo.toml does not have or of other systems, and of tests.
LEFT_OUT=(src/cgroup.rs src/mount_other.rs src/synchronous src/v2/devices src/seccomp/fixture)

# release NAME VERSION FOLDER: the sources of a release, unpacked by Cargo
release() {
    mkdir -p "$3/fetch"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2024"\n[lib]\npath = "empty.rs"\n[dependencies]\n%s = { version = "=%s", default-features = false }\n' \
        "$1" "$2" >"$3/fetch/Cargo.toml"
    : >"$3/fetch/empty.rs"
    local vendored=$3/vendored
    (cd "$3/fetch" && cargo vendor --quiet --versioned-dirs "$vendored" >/dev/null)
    cp -r "$vendored/$1-$2" "$3/release"
}

# Tests are the last item of a file. A folder's own `mod test;` is an empty module without them.
without_tests() {
    local file
    while read -r file; do
        awk '
            { line[NR] = $0 }
            /^#\[cfg\(test\)\]$/ { attribute = NR }
            /^mod tests? \{$/ { start = attribute }
            END {
                last = NR
                if (start) for (last = start - 1; last > 0 && line[last] == ""; last--) { }
                for (i = 1; i <= last; i++) print line[i]
            }' "$file" >"$file.new"
        mv "$file.new" "$file"
    done < <(grep -rlE '^mod tests? \{$' "$1/src")
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for patches in "$CHECKOUT"/third_party/patches/*; do
    crate=$(basename "$patches")
    name=${crate%-*} version=${crate##*-}
    say "third_party/$name: $version, with its patches"
    mkdir "$work/$crate"
    release "$name" "$version" "$work/$crate"
    for patch in "$patches"/*.patch; do
        (cd "$work/$crate/release" && git apply "$patch")
    done
    without_tests "$work/$crate/release"
    for path in "${LEFT_OUT[@]}"; do rm -rf "$work/$crate/release/$path"; done
    if [ "$action" = write ]; then
        rm -rf "$CHECKOUT/third_party/$name/src"
        cp -r "$work/$crate/release/src" "$CHECKOUT/third_party/$name/src"
    else
        diff --recursive --unified "$work/$crate/release/src" "$CHECKOUT/third_party/$name/src" ||
            die "third_party/$name is not $version with its patches: change a patch, then run scripts/third-party.sh write"
    fi
done
