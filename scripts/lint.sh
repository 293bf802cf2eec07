#!/usr/bin/env bash
# Shellcheck, the changed copies of crates, format and the book; then a build of everything for this machine with clippy and rustdoc, warnings denied
# (rustc-lint.sh). `lint.sh --text` builds nothing: the gate's own build lints.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/workspaces.sh"
cd "$CHECKOUT"
say "scripts"
# Those without a suffix say in their first line that a shell runs them.
mapfile -t shell_scripts < <(git ls-files -- '*.sh' ':!third_party'
    git grep -lE '^#! ?/(usr/bin/env (ba)?sh|bin/(ba)?sh)' -- ':!*.sh' ':!*.md' ':!*.rs' ':!third_party')
shellcheck --severity=warning "${shell_scripts[@]}"
"$CHECKOUT/scripts/third-party.sh" check
for folder in . $(workspaces); do
    say "format: $folder"
    (cd "$folder" && cargo fmt --all --check)
done
say "the book"
"$CHECKOUT/scripts/book.sh"
[ "${1:-}" != --text ] || exit 0
lint_with_builds
"$CHECKOUT/scripts/test.sh" --build
