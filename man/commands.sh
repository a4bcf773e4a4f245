#!/usr/bin/env bash
# The commands of a page that tests/printed.sh finds, with the names of installed programs.
#   man/commands.sh PAGE TEXT
set -eu -o pipefail
"${0%/*}/../tests/printed.sh" "$@" | sed -E 's#build/programs/([a-z]+)#tapegrad-\1#; s#(tapegrad-[a-z]+)_([a-z]+)#\1-\2#; s/^./    &/'
