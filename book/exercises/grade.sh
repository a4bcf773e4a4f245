#!/bin/sh
# Grades a learner's folder: NAME.c for each exercise NAME, or NAME/student.c. Prints the grader's sentence for each
# exercise, and the points: one for each right answer.
#     sh grade.sh FOLDER      in the folder exercises; CC and CFLAGS choose the compiler
set -u
folder=${1:?usage: sh grade.sh FOLDER}
here=$(dirname "$0")
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
flags="-O1 -w -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I$here ${CFLAGS:-}"
for part in grade tapegrad; do
    ${CC:-cc} $flags -c "$here/$part.c" -o "$work/$part.o" || exit 2
done
points=0 all=0
for exercise in "$here"/*/exercise.c; do
    directory=$(dirname "$exercise")
    name=$(basename "$directory")
    all=$((all + 1))
    answer=$folder/$name.c
    [ -f "$answer" ] || answer=$folder/$name/student.c
    if [ ! -f "$answer" ]; then
        echo "$name: there is no $folder/$name.c and no $answer"
    elif ! ${CC:-cc} $flags -I"$directory" "$answer" "$exercise" "$work/grade.o" "$work/tapegrad.o" -lm \
        -o "$work/program" 2>"$work/errors"; then
        echo "$name: it does not compile: $(grep -m 1 error "$work/errors")"
    elif "$work/program"; then
        points=$((points + 1))
    fi
done
echo "points: $points of $all"
