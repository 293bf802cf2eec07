#!/usr/bin/env bash
# Installs programs without their symbols, which go into `.debug` beside them.
#
# install.sh FOLDER DESTINATION PROGRAM… takes each program of FOLDER. A stripped program names its file of symbols
# (`.gnu_debuglink`), so debuggers and the runtime's own backtraces find them there. You may delete these files. OBJCOPY
# is another architecture's.
set -euo pipefail

folder=$1 destination=$2 objcopy=${OBJCOPY:-objcopy}
shift 2
install -d "$destination/.debug"
for program in "$@"; do
    symbols=$destination/.debug/$program.debug
    "$objcopy" --only-keep-debug "$folder/$program" "$symbols"
    chmod 644 "$symbols"
    # Beside its final name, then into place in one step: a running program cannot be written to.
    "$objcopy" --strip-all --add-gnu-debuglink="$symbols" "$folder/$program" "$destination/.$program.new"
    chmod 755 "$destination/.$program.new"
    mv -f "$destination/.$program.new" "$destination/$program"
done
