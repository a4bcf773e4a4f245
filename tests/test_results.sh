#!/usr/bin/env bash
# bench/cpu with programs of the shell, and tests/results.py, which compares tables with raw output.
. "$(dirname "$0")/check.sh"
unset PYTHON FT_DIR LLMC KANN MNIST TEXT MPIRUN

# Programs that print their names and arguments; chunks fails.
stubs=$directory/stubs
mkdir -p "$stubs/bench" "$stubs/programs" "$stubs/examples"
for name in $(bench/cpu --list --build "$stubs" | tr ' ' '\n' | grep "^$stubs/[bpe]" | sort -u); do
    printf '#!/bin/sh\necho "$(basename "$0") $*"\n' >"$name" && chmod +x "$name"
done
printf '#!/bin/sh\necho broken\nexit 3\n' >"$stubs/bench/chunks"
measured=$directory/measured
cpu() { bench/cpu --build "$stubs" --output "$measured" "$@"; }

check "two names" cpu copy_step window
check "nothing is said of other names" [ -z "$(cpu copy_step window 2>&1)" ]
check "one file each" [ "$(ls "$measured" | xargs)" = "copy_step.txt window.txt" ]
check "both commands" [ "$(grep -v '^#' "$measured/copy_step.txt" | xargs)" = "copy_step copy_step --precision bf16" ]
check "the commands stand above" grep -qx "# $stubs/bench/copy_step --precision bf16" "$measured/copy_step.txt"
check "the day, the machine and its load" grep -qE '^# 20[0-9-]+, .*[0-9]+ x .*, load [0-9.]+$' "$measured/copy_step.txt"
echo kept >"$measured/window.txt"
# refuses LINE COMMAND...: it fails, and prints this line
refuses() { ! "${@:2}" >"$directory/printed" 2>&1 && grep -qxF "$1" "$directory/printed"; }
check "its seconds" grep -qE '^# [0-9]+\.[0-9] s$' "$measured/copy_step.txt"
check "a program fails" refuses 'bench/cpu: failed: chunks' cpu
check "its status and last line" grep -qx 'bench/cpu: chunks: exit status 3: broken' "$directory/printed"
check "it has no result" [ ! -e "$measured/chunks.txt" ]
check "others are measured" [ -s "$measured/softmax_decay.txt" ]
check "what has been measured is kept" [ "$(cat "$measured/window.txt")" = kept ]
check "peers that are not named" grep -qx 'bench/cpu: gpt2: not measured, without LLMC' "$directory/printed"
check "a name that does not exist" refuses 'bench/cpu: windows: unknown; --list prints the names' cpu windows

# A page whose table has these cells, and raw output.
page() {
    printf '%s\n' "# A page" "$1" '' '| N | time | the paper |' '|---|---|---|' "| 4096 | $2 | 17 |" >"$directory/page.md"
}
printf '%s\n' 'N 4096: 12.3456 ms' 'N 65536: 147428 ms' >"$directory/raw.txt"
link='[output](raw.txt)'
agrees() {
    page "$1" "$2"
    tests/results.py "$directory/page.md"
}
check "a number" agrees "$link" 12.3456
check "a rounded number" agrees "$link" '12.35 ms'
check "a rounded whole number" agrees "$link" '147 400'
check "a number that is not in the output" refuses "$directory/page.md:6: 12.36 is not in raw.txt" agrees "$link" 12.36
check "digits are not dropped at will" refuses "$directory/page.md:6: 150000 is not in raw.txt" agrees "$link" '150 000'
check "a table without output" refuses "$directory/page.md:4: no link to the raw output in this section" agrees 'No link.' 12.3
check "a table without numbers" agrees 'No link.' 'all of N'

# bench/results/README.md has estimates, and what the compiler prints.
pages=$(printf '%s\n' README.md docs/benchmarks.md docs/generation.md bench/results/*.md | grep -v results/README.md)
check "tables of measurements" tests/results.py $pages

report
