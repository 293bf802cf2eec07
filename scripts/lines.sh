#!/usr/bin/env bash
# Lines of Rust without comments and blanks, by folder: the product's, and those of tests (files below tests/, benches/
# and fuzz/, files tests.rs, modules `mod tests`, and what third_party/ has of either).
#
#   lines.sh            of this checkout
#   lines.sh REVISION   and what changed since then
set -euo pipefail
source "$(dirname "$0")/lib.sh"
cd "$CHECKOUT"

# count REVISION: "FOLDER PRODUCT TESTS" for each folder; without one, of the files as they are
count() {
    local file text
    while read -r file; do
        if [ -n "${1:-}" ]; then text=$(git show "$1:$file"); else text=$(cat "$file" 2>/dev/null || true); fi
        awk -v file="$file" '
            BEGIN { split(file, part, "/"); is_test = file ~ /(^|\/)(tests|benches|fuzz)(\/|\.rs$)/ }
            /^#\[cfg\(test\)\]$/ { attribute = 1; next }
            attribute && /^mod [a-z_]+ \{$/ { is_test = 1 }
            { attribute = 0 }
            /^[ \t]*($|\/\/)/ { next }
            { if (is_test) tests++; else product++ }
            END { print part[1], product + 0, tests + 0 }' <<<"$text"
    done < <(git ls-tree -r --name-only "${1:-HEAD}" | grep '\.rs$') |
        awk '{ product[$1] += $2; tests[$1] += $3; all[$1] } END { for (f in all) print f, product[f], tests[f] }' | sort
}

if [ -z "${1:-}" ]; then
    { echo "folder product tests"; count; } | column -t
    exit
fi
join -a 1 -a 2 -e 0 -o 0,1.2,1.3,2.2,2.3 <(count "$1") <(count) | awk '
    BEGIN { print "folder product tests product-change tests-change" }
    { printf "%s %d %d %+d %+d\n", $1, $4, $5, $4 - $2, $5 - $3; p += $4; t += $5; dp += $4 - $2; dt += $5 - $3 }
    END { printf "all %d %d %+d %+d\n", p, t, dp, dt }' | column -t
