#!/usr/bin/env bash
# .ci/run with a stub of make: its steps, the steps of each group, and how a run ends.
. "$(dirname "$0")/check.sh"
[ -f .ci/run ] || { echo "not tested: .ci/run, which this tree lacks" && exit; }
tree=$directory/tree
mkdir -p "$tree/.ci" "$tree/tests" "$tree/build/programs" "$tree/build/test-logs" "$tree/bin"
cp .ci/run "$tree/.ci"
# A make that fails with the target `broken`, and prints what tests/run does.
printf '#!/bin/sh\n[ ! -e broken ] || ! grep -qxF "$*" broken || exit 1\necho "2 passed, 0 failed"\n' |
    tee "$tree/bin/make" "$tree/tests/nightly.sh" >"$tree/build/programs/copy_task"
chmod +x "$tree/bin/make" "$tree/tests/nightly.sh" "$tree/build/programs/copy_task"
touch "$tree/build/test-logs/test_rows.log"
cd "$tree" || exit 2
run() { PATH=$tree/bin:$PATH .ci/run "$@" >"$directory/out" 2>&1; }
# Those that ran, or began.
steps() { sed -n 's/^== \(make\|tests\/\|build\/\|all_is\)/\1/p' "$directory/out" | grep -v ': '; }
groups=$(sed -n 's/^all_groups=(\(.*\))$/\1/p' .ci/run)

# Its PATH begins with ccache's folder, which has no make.
check "all groups" run
steps >"$directory/all"
check "as README has it, first" [ "$(head -n 1 "$directory/all")" = "make deps test" ]
check "the long checks last" [ "$(tail -n 1 "$directory/all")" = "tests/nightly.sh --turn" ]
check "the counts are added" [ "$(tail -n 1 "$directory/out")" = "$((2 * $(grep -cv all_is "$directory/all"))) passed, 0 failed, 0 skipped" ]
check "the seconds of all" grep -qx 'all of it took [0-9]* s' "$directory/out"

# The groups together run each step once; the packages belong to every group.
for group in $groups; do
    check "group $group" run "$group"
    steps | grep -v '^make DEV=1' >>"$directory/groups"
done
once() { diff <(grep -v '^make DEV=1' "$directory/all" | sort) <(sort "$directory/groups"); }
check "each step is in one group" once
check "two groups" run checks nightly
check "in the order of all" diff <(steps) <(grep -xFf <(steps) "$directory/all")
refused() { ! run sanitise && grep -qxF ".ci/run: sanitise: expected of $groups" "$directory/out"; }
check "an unknown group" refused

# A step that fails ends the run.
echo 'make test-nucleus-alone' | cut -d ' ' -f 2 >broken
fails() { ! run checks && grep -qxF '== FAILED: make test-nucleus-alone' "$directory/out" && ! grep -q test-one-file "$directory/out"; }
check "a failure" fails
rm broken
echo 'not tested: pictures, without gnuplot' >build/test-logs/test_rows.log
lacks() { ! run tests && grep -qxF '== FAILED: all_is_tested' "$directory/out"; }
check "a test that was left out" lacks
report
