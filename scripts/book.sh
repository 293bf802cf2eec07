#!/usr/bin/env bash
# The documentation as a book: target/book/index.html.
#
# Pages link to each other as files of the repository do, and some lie outside of docs/ (this README, the SDK's). So
# mdBook reads a copy of the repository's pages in which every link leads to the same place as here.
set -euo pipefail
source "$(dirname "$0")/lib.sh"
source "$CHECKOUT/scripts/unpacked.sh"
cd "$CHECKOUT"

COPY=$TARGET_DIR/book-source
BOOK=$TARGET_DIR/book

unpack_for_book

rm -rf "$COPY" "$BOOK"
mkdir -p "$COPY"
# Every page, and what pages link to beside pages.
cp --parents -r ./*.md docs guest-sdk/rust/README.md tests/guests/README.md third_party/README.md workflows/hello \
    workflows/functions/README.md \
    workflows/vehicle-paths/{README.md,workflow.yaml} abi/src/lib.rs deploy/{grafana,helm,kubernetes,systemd} "$COPY"
# The table of contents lies in docs/, the copy's root is the repository's.
sed -E 's#\]\(\.\./#](#; t; s#\]\(#](docs/#' docs/SUMMARY.md >"$COPY/SUMMARY.md"
rm "$COPY/docs/SUMMARY.md"
MDBOOK_BOOK__SRC=$COPY "$STATE_DIR/mdbook/usr/bin/mdbook" build --dest-dir "$BOOK" .
# Debian's mdBook brings no fonts; the reader's system has some.
mkdir -p "$BOOK/fonts"
: >"$BOOK/fonts/fonts.css"

# Links between the book's pages.
broken=
while IFS=: read -r page link; do
    target=${link#href=\"}
    target=${target%%[#\"]*}
    case $target in '' | *://* | mailto:*) continue ;; esac
    [ -e "$(dirname "$page")/$target" ] || broken+="$page: $target"$'\n'
done < <(grep --recursive --only-matching --include='*.html' 'href="[^"]*"' "$BOOK")
[ -z "$broken" ] || die "these links of the book lead nowhere:"$'\n'"$broken"
say "the book is $BOOK/index.html"
