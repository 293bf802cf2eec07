# The cargo workspaces of the checkout that are not the root one. Sourced.
#
# Guests have their own: they are built for wasm32-wasip1, with a lock file of their own.

workspaces() {
    local folder
    for folder in guest-sdk/rust tests/guests workflows workflows/*; do
        grep -qs '^\[workspace\]' "$CHECKOUT/$folder/Cargo.toml" && echo "$folder"
    done
}
