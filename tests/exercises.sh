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
for name in "$@"; do
    ${CC:-cc} $flags -Werror -c "book/exercises/$name/exercise.c" -o "$directory/$name.o"
    count=$((count + 1))
    [ "$(answer "$name" student.c student)" = "$(head -n 1 "book/exercises/$name/expected.txt")" ] ||
        fail "$name: the empty file gets: $(answer "$name" student.c student)"
    while IFS= read -r line; do
        count=$((count + 1))
        found=$(answer "$name" answers.c "${line%%:*}")
        [ "$found" = "$line" ] || fail "$name: expected: $line"$'\n'"found:    $found"
    done < <(tail -n +2 "book/exercises/$name/expected.txt")
done
report
