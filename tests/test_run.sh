#!/usr/bin/env bash
# tests/run with stubs of test programs: which run, what is counted, and when it fails; and the lines of
# tests/concerns.txt, by which make check chooses tests.
. "$(dirname "$0")/check.sh"
unset TEST ONLY EMULATOR
tests=$directory/tests
mkdir "$tests"

# stub NAME STATUS LINE...: a test program that prints the lines and ends with the status
stub() {
    { echo '#!/bin/sh' && printf 'echo "%s"\n' "${@:3}" && echo "exit $2"; } >"$tests/$1"
    chmod +x "$tests/$1"
}
# runs STATUS LAST_LINE ARGUMENT...: tests/run of the stubs
runs() {
    count=$((count + 1))
    ONLY="test_tape test_rows test_gone $only" tests/run "$directory" "${@:3}" >"$directory/out" 2>&1
    local status=$?
    [ "$status; $(tail -n 1 "$directory/out")" = "$1; $2" ] || fail "expected $1; $2, found $status: $(cat "$directory/out")"
}

only=
stub test_tape 0 "100%: Checks: 3, Failures: 0, Errors: 0"
stub test_rows 0 "not tested: pictures, without gnuplot" "100%: Checks: 2, Failures: 0, Errors: 0"
stub test_gone 1 "this program has no source"
runs 0 "5 passed, 0 failed, 1 skipped"
check "the reason is repeated" grep -q '1 not tested: pictures, without gnuplot' "$directory/out"
check "a program without a source does not run" sh -c "! grep -q 'no source\|test_gone' '$directory/out'"
runs 0 "3 passed, 0 failed" test_rows
stub test_rows 1 "50%: Checks: 2, Failures: 1, Errors: 0"
runs 1 "4 passed, 1 failed"
stub test_rows 139 # which ends before it counts
runs 1 "3 passed, 1 failed"
stub test_tape 1 "the width: expected 3, found 4" "66%: Checks: 3, Failures: 1, Errors: 0"
runs 1 "2 passed, 2 failed"
check "what they printed follows the table" [ "$(sed -n '/^test_tape /,$p' "$directory/out" | grep '^==\|width' | xargs)" = \
    "== test_rows, exit status 139 == test_tape, exit status 1 the width: expected 3, found 4" ]
check "its seconds are printed" grep -q '^test_rows  *0 checks, 1 failed, [0-9.]* s$' "$directory/out"
count=$((count + 1))
rm "$tests"/test_*
found=$(ONLY=test_tape tests/run "$directory" 2>&1; echo "; $?")
[ "$found" = "TEST= ONLY=test_tape: no program of $directory/tests is one of these"$'\n'"; 1" ] || fail "no program: $found"

# A script among the tests that has nothing to test is no passed test.
count=$((count + 1))
found=$(ONLY=test_mpi.sh MPIRUN=no_such_program tests/run "$directory" 2>&1 | tail -n 1)
[ "$found" = "0 passed, 0 failed, 1 skipped" ] || fail "test_mpi.sh without MPI: $found"

# Every line names files, test programs and rows that exist.
files=$(find [A-Za-z]* -type f -not -path 'build*' -not -path 'packages/*')
rows=$(sed -nE 's/.*ROW\((\w+),.*/\1/p' tests/operations.h ext/*/tests/operations.h; sed -nE 's/.*ROW\((\w+),.*/op_\1/p' tests/operation_table.h)
any() { # PATTERN TEXT: a line of the text matches
    local line
    while read -r line; do [[ $line == $1 ]] && return; done <<<"$2"
    return 1
}
while read -r pattern programs; do
    [[ $pattern && $pattern != '#'* ]] || continue
    count=$((count + 1))
    any "$pattern" "$files" || fail "tests/concerns.txt: $pattern matches no file"
    for program in ${programs% *}; do
        [ "$program" = itself ] || compgen -G "tests/test_${program%.sh}.*" >/dev/null ||
            compgen -G "ext/*/tests/test_$program.c" >/dev/null ||
            fail "tests/concerns.txt: $pattern: there is no tests/test_$program"
    done
    row=${programs##* }
    while [ "$row" != - ] && read -r name; do
        any "$name" "$rows" || fail "tests/concerns.txt: $pattern: no row is named $name"
    done <<<"${row//,/$'\n'}"
done <tests/concerns.txt

report
