#!/usr/bin/env bash
# Compiles every C block of README.md, CONTRIBUTING.md and docs/, runs those that are programs, and
# checks the pages' links.
set -u
build=${TAPEGRAD_BUILD:-build} count=0 failures=0
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
export TAPEGRAD_CUDA_ON_HOST_DEVICES=0 # the emulation is slow, and not what is tested here

# Writes each block between ```c and ``` into a file of its own.
for page in *.md docs/*.md; do
    awk -v prefix="$directory/$(basename "$page" .md)" '
        /^```c$/ { inside = 1; file = sprintf("%s-%02d.c", prefix, ++n); next }
        /^```$/ { inside = 0 }
        inside { print > file }' "$page"
done

fail() { failures=$((failures + 1)) && echo "$*"; }

for snippet in "$directory"/*.c; do
    count=$((count + 1))
    grep -q '<tapegrad.h>' "$snippet" || sed -i '1i #include <tapegrad.h>' "$snippet"
    program=${snippet%.c}
    flags="-std=gnu11 -Wall -Wextra -Wpedantic -Werror -Wno-unused-function -fopenmp -I."
    [ "${REAL:-float}" = float ] || flags+=" -DTAPEGRAD_DOUBLE"
    [ -n "$(nm "$build/libtapegrad.a" 2>/dev/null | grep -m1 __asan)" ] && flags+=" -fsanitize=address,undefined"
    if grep -q 'int main' "$snippet"; then
        "${CC:-gcc}" $flags "$snippet" "$build/libtapegrad.a" ${LIBS:--ldnnl -lm} -o "$program" ||
            { fail "$(basename "$snippet") does not compile"; continue; }
        "$program" >"$program.out" 2>&1 || fail "$(basename "$snippet") fails: $(tail -n 3 "$program.out")"
    else
        "${CC:-gcc}" $flags -c "$snippet" -o "$program.o" || fail "$(basename "$snippet") does not compile"
    fi
done

# The README's program is exactly the example, and learns.
count=$((count + 2))
first=$(grep -l 'int main' "$directory"/README-*.c | head -n 1)
cmp examples/two_moons.c "$first" || fail "README.md's program is not examples/two_moons.c"
awk '/loss/ { loss = $4 } END { exit !(loss > 0 && loss < 0.05) }' "${first%.c}.out" ||
    fail "README.md's program ends at $(tail -n 1 "${first%.c}.out"), expected a loss below 0.05"

# README.md stays short.
count=$((count + 1))
[ "$(wc -l <README.md)" -le 150 ] || fail "README.md has $(wc -l <README.md) lines, expected at most 150"

# Every relative link leads to a file.
while IFS=: read -r page link; do
    count=$((count + 1))
    [ -e "$(dirname "$page")/${link%%#*}" ] || fail "$page links to $link, which does not exist"
done < <(grep -HoE '\]\([^)#]+' $(find . -name '*.md' -not -path './build*' -not -path './packages/*') | sed 's/\](//' | grep -vE ':https?:')

[ "$count" -ge 2 ] || fail "no snippets were found"
echo "$((100 * (count - failures) / count))%: Checks: $count, Failures: $failures, Errors: 0"
[ "$failures" -eq 0 ]
