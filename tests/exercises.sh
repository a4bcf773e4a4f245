#!/usr/bin/env bash
# The book's exercises: an answer of each kind gets its sentence from the grader. Answers are in
# exercises/NAME/answers.c, by a macro each; expected.txt has their sentences, the student's file first.
#   tests/exercises.sh BUILD_DIRECTORY [NAME...]   all exercises, or these
. "$(dirname "$0")/check.sh"
build=${1:-build}
shift $(($# > 0 ? 1 : 0))
[ $# -gt 0 ] || set -- $(cd book/exercises && ls -d */ | tr -d /)
flags="-std=gnu11 -O1 -Wall -Wno-unused-variable -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I$build -Ibook/exercises"
${CC:-cc} $flags -c "$build/tapegrad.c" -o "$directory/tapegrad.o" &
${CC:-cc} $flags -Werror -c book/exercises/grade.c -o "$directory/grade.o"
wait

# answer NAME FILE MACRO: the sentence that the grader prints
answer() {
    local program=$directory/$1-$3
    ${CC:-cc} $flags -D"$3" "book/exercises/$1/$2" "$directory/$1.o" "$directory/grade.o" "$directory/tapegrad.o" -lm \
        -o "$program" && "$program" | sed "s/^[a-z_0-9]*: /$3: /"
}
# exercise NAME: a line "ok" or "not: ..." for each answer
exercise() {
    local line found file=student.c
    ${CC:-cc} $flags -Werror -c "book/exercises/$1/exercise.c" -o "$directory/$1.o"
    while IFS= read -r line; do
        found=$(answer "$1" $file "${line%%:*}" 2>&1)
        [ "$found" = "$line" ] && echo ok || echo "not: $1: expected $line, found $found"
        file=answers.c
    done <"book/exercises/$1/expected.txt"
}
for name in "$@"; do
    [ "$(jobs -rp | wc -l)" -lt "$(nproc)" ] || wait -n
    exercise "$name" >"$directory/$name.lines" 2>&1 &
done
wait
for name in "$@"; do
    count=$((count + $(wc -l <"$directory/$name.lines")))
    while IFS= read -r line; do fail "$line"; done < <(grep -v '^ok$' "$directory/$name.lines")
done
report
