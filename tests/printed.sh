#!/bin/sh
# The commands of a page as they are printed: the one paragraph of indented lines that has TEXT.
#   tests/printed.sh PAGE TEXT
exec awk -v RS= -v text="${2:?usage: tests/printed.sh PAGE TEXT}" '
    /^    / && index($0, text) { gsub(/(^|\n)    /, "\n"); print; found++ }
    END { if (found != 1) { print FILENAME ": paragraphs of commands with " text ": " found + 0 > "/dev/stderr"; exit 1 } }' "$1"
