#!/usr/bin/env bash
# Compiles every C snippet of README.md and docs/, and runs those that are programs.
set -u
build=${TAPEGRAD_BUILD:-build} count=0 failures=0
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
export TAPEGRAD_CUDA_ON_HOST_DEVICES=0 # the emulation is slow, and not what is tested here

# Each block between ```c and ``` into a file of its own.
for page in README.md docs/*.md; do
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
    flags="-std=gnu11 -Wall -Wextra -Wpedantic -Werror -Wno-unused-function -fopenmp -I. -I$build/include"
    [ -n "$(nm "$build/libtapegrad.a" 2>/dev/null | grep -m1 __asan)" ] && flags+=" -fsanitize=address,undefined"
    if grep -q 'int main' "$snippet"; then
        "${CC:-gcc}" $flags "$snippet" "$build/libtapegrad.a" ${LIBS:--ldnnl -lcjson -lm} -o "$program" ||
            { fail "$(basename "$snippet") does not compile"; continue; }
        "$program" >"$program.out" 2>&1 || fail "$(basename "$snippet") fails: $(tail -n 3 "$program.out")"
    else
        "${CC:-gcc}" $flags -c "$snippet" -o "$program.o" || fail "$(basename "$snippet") does not compile"
    fi
done

# The README's program is the example, to the letter.
count=$((count + 1))
first=$(grep -l 'int main' "$directory"/README-*.c | head -n 1)
cmp examples/first_program.c "$first" || fail "README.md's program is not examples/first_program.c"

[ "$count" -ge 2 ] || fail "no snippets were found"
echo "$((100 * (count - failures) / count))%: Checks: $count, Failures: $failures, Errors: 0"
[ "$failures" -eq 0 ]
