#!/usr/bin/env bash
# The book: its exercises; its module and one-line exercises in node; its pages in Chromium. (make test-book)
#   tests/book.sh BUILD_DIRECTORY [pages]   pages: in Chromium too
. "$(dirname "$0")/check.sh"
build=${1:-build}
has() { command -v "$1" >/dev/null || { echo "not tested: $2, without $1" && false; }; }

check exercises tests/exercises.sh "$build"
# A class's folder is graded: one right answer, one wrong, one that does not compile, none of the others.
mkdir "$directory/learner" "$directory/learner/softmax_backward"
cp book/exercises/tape_gradients/answers.c "$directory/learner/tape_gradients.c"
cp book/exercises/softmax_backward/answers.c "$directory/learner/softmax_backward/student.c"
echo 'void product_backward(Node *node)' >"$directory/learner/product_backward.c"
# (no wrong answer to tape_gradients is called "plus", so its answer is right.)
check grade.sh env ANSWER=plus CFLAGS=-Ibook/exercises/tape_gradients sh "$build/book/exercises/grade.sh" "$directory/learner"
count=$((count + 1))
for line in 'tape_gradients: right, in 3 cases' 'product_backward: it does not compile: ' \
    'softmax_backward: the sign before the sum is wrong' "points: 1 of $(ls book/exercises/*/exercise.c | wc -l)"; do
    grep -q "^$line" "$directory/said" || fail "grade.sh does not print \"$line\": $(cat "$directory/said")"
done
if has node 'the one-line exercises'; then
    check 'one-line exercises' node tests/book_try.mjs
    [ ! -f "$build/book/module.js" ] || check 'the module' node tests/book_module.mjs "$build"
fi
[ "${2:-}" != pages ] || ! has chromedriver 'the pages' || check pages node tests/book_pages.mjs "$build"

# Every page has its links, and the whole stays small.
count=$((count + 2))
for page in "$build"/book/*.html; do
    for link in $(grep -oE '(href|src)="[^":#]*' "$page" | sed 's/.*"//'); do
        [ -e "$build/book/$link" ] || fail "$page links to $link, which does not exist"
    done
done
weight=$(cat "$build"/book/*.html "$build"/book/*.js "$build"/book/*.css | wc -c)
[ "$weight" -le 1400000 ] || fail "the book weighs $weight bytes, expected at most 1400000"
report
