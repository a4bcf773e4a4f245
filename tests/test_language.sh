#!/usr/bin/env bash
# The language check finds phrases of the old dialect in pages and sources, also across lines, and
# long lines of sources; it leaves code in pages and plain English alone.
. "$(dirname "$0")/check.sh"

# check EXPECTED FILE TEXT: the lines that are reported, as "2 5"
check() {
    local found
    count=$((count + 1))
    printf '%s\n' "$3" >"$directory/$2"
    found=$(tests/check_language.sh "$directory/$2" 2>&1 | cut -d: -f2 | tr '\n' ' ')
    [ "${found% }" = "$1" ] ||
        fail "\"$3\": reported lines \"${found% }\", expected \"$1\""
}

while read -r phrase; do
    check 1 phrase.md "$phrase"
done <<'END'
The backward pass keeps a number a position.
It draws 30 images a second.
The output has so many rows.
A row without keys is not-a-number.
Lines are asked for early.
The pool gives the block back.
The state stays in the second cache.
The message tells the shape.
Both tensors lie side by side.
An input wants a gradient.
The slope at 0 is 0.
The tape goes backward.
Each state is made anew.
Sequences are laid end to end.
Use a build with double.
The loss falls. What is left is noise.
END
check 1 lines.md $'Both tensors lie\nside by side.'
check 2 comment.c $'/* n:\n * as\n * many */'
check 2 wide.c "$(printf 'int x;\n/* %0100d */' 0)"
mkdir "$directory/docs"
check '2 4' docs/colons.md $'One colon: here.\nTwo: here\nand: there. `f`: one.\n- a: b: c\n- d: e\n- f: g'
check '' docs/code.md $'`a: b: c`: d (e: f).\n\n    a: b: c\n\n| a: b: c |\n\n[x](http://y): z'
check '' colons.md $'Two: here: too.'
check '' code.md $'`so_many`, `so many`\n```c\n/* so many */\n```'
check '' quoted.md $'<!-- quoted -->\n| so many | n |\n<!-- end quoted -->'
check '' plain.md 'The kernel prefetches one row per warp; a step takes 3 ms. It runs a step at a time.'
check '' unicode.c "$(printf '/* %s */' "$(printf '×%.0s' {1..90})")"

report
