#!/usr/bin/env bash
# tests/run with stubs of test programs: which run, what is counted, and when it fails.
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
check "its seconds are printed" grep -q '^test_rows  *0 checks, 1 failed, [0-9.]* s$' "$directory/out"
count=$((count + 1))
rm "$tests"/test_*
found=$(ONLY=test_tape tests/run "$directory" 2>&1; echo "; $?")
[ "$found" = "TEST= ONLY=test_tape: no program of $directory/tests is one of these"$'\n'"; 1" ] || fail "no program: $found"

# A script among the tests that has nothing to test is no passed test.
count=$((count + 1))
found=$(ONLY=test_mpi.sh MPIRUN=no_such_program tests/run "$directory" 2>&1 | tail -n 1)
[ "$found" = "0 passed, 0 failed, 1 skipped" ] || fail "test_mpi.sh without MPI: $found"

report
