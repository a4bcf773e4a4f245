#!/usr/bin/env bash
# Writes a page for man from its source man/NAME.SECTION.md, in which a line "$ COMMAND" stands for what the command
# prints. The date is the newest in headings of CHANGELOG.md: the same sources give the same bytes.
#   BUILD=directory HEADERS='tapegrad.h ...' VERSION=0.Y.Z man/page.sh man/NAME.SECTION.md >NAME.SECTION
set -eu -o pipefail
source=${1:?usage: man/page.sh man/NAME.SECTION.md} name=$(basename "${1%.*.md}")
section=$(basename "${source#*.}" .md)
date=$(sed -nE 's/^## .*([0-9]{4}-[0-9]{2}-[0-9]{2}).*/\1/p' CHANGELOG.md | sed 1q)

awk '/^\$ / && system(substr($0, 3)) { print FILENAME ":" FNR ": failed: " $0 >"/dev/stderr"; exit 1 }
    !/^\$ / { print; fflush() }' "$source" |
    pandoc -f markdown-smart -t man --template man/page.man --lua-filter man/page.lua -M title="${name^^}" \
        -M section="$section" -M date="$date" -M footer="tapegrad $VERSION" |
    awk '!(heading && /^\.PP$/) { print } { heading = /^\.S[HS]/ }' # mandoc objects to a paragraph behind a heading
