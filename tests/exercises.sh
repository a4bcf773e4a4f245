#!/usr/bin/env bash
# The book's exercises: an answer of each kind gets its sentence from the grader. A line of expected.txt has names of
# answers and their sentence: "student" is student.c as a reader gets it, and answers.c gives the others.
#   tests/exercises.sh BUILD_DIRECTORY [NAME...]   all exercises, or these
. "$(dirname "$0")/check.sh"
build=${1:-build}
shift $(($# > 0 ? 1 : 0))
[ $# -gt 0 ] || set -- $(cd book/exercises && ls -d */ | tr -d /)
flags="-std=gnu11 -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I$build -Ibook/exercises"
warnings="-Wall -Wextra -Wconversion -Werror"
# What the grader says of any exercise; all other sentences name a mistake.
general='(right,|no element of|only row 0 of|[0-9]+ of [0-9]+ elements|it writes outside|your function|all elements are (minus|twice|half|0)|the (values|sums) are right, but they|[^ ]* is (NaN|infinite), expected)'

# compile OBJECT FLAGS... FILE...
compile() { ${CC:-cc} $flags "${@:2}" -o "$directory/$1"; }
# exercise NAME: a line "ok" or "not: ..." for each answer, and for each property of all
exercise() {
    local folder=book/exercises/$1 line name file found
    compile "$1.o" $warnings -O1 -c "$folder/exercise.c"
    for file in student answers; do
        compile "$1-$file" $warnings $([ $file = answers ] || echo -Wno-unused -Wno-unused-parameter) -O1 \
            "$folder/$file.c" "$directory/$1.o" "$directory/grade.o" "$directory/tapegrad.o" -lm
    done
    while IFS= read -r line; do
        for name in $(tr -d , <<<"${line%%: *}"); do
            [ "$name" = student ] && file=student || file=answers
            found=$(ANSWER=$name "$directory/$1-$file" 2>&1)
            [ "$found" = "$1: ${line#*: }" ] && echo ok || echo "not: $1: expected $line, found $found"
        done
    done <"$folder/expected.txt"
    [ "$(sed 's/[^:]*: //' "$folder/expected.txt" | grep -cvE "^$general")" -ge 4 ] && echo ok ||
        echo "not: $1: expected.txt names fewer than 4 mistakes"
    found=$(sed 's/[^:]*: //' "$folder/expected.txt" | sort | uniq -d)
    [ -z "$found" ] && echo ok || echo "not: $1: expected.txt has two lines with this sentence: $found"
    for name in $(grep -o 'is("[^"]*")' "$folder/answers.c" | cut -d '"' -f 2 | sort -u); do
        grep -qE "^([^:]*, )?$name[,:]" "$folder/expected.txt" ||
            echo "not: $1: answers.c has $name, which is not in expected.txt"
    done
}

compile tapegrad.o -c "$build/tapegrad.c" &
compile grade.o $warnings -O1 -c book/exercises/grade.c
wait
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
