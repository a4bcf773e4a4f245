#!/usr/bin/env bash
# tests/nightly.sh in a repository with a stub of make: the part by the commit's time, and a part that
# fails before the change too.
. "$(dirname "$0")/check.sh"
command -v git >/dev/null || { echo "not tested: tests/nightly.sh, without git" && exit; }
unset COUNT FUZZ_SECONDS
tree=$directory/tree hour=3600
mkdir -p "$tree/tests/release" "$directory/bin"
cp tests/nightly.sh "$tree/tests"
stubs="$directory/bin/make $tree/tests/aarch64 $tree/tests/memcheck $tree/tests/mutants.py $tree/tests/one_file.sh $tree/tests/delete_extension.sh $tree/tests/release/archives.sh"
printf '#!/bin/sh\n[ ! -e broken ] || exit 1\necho "make $*"\n' | tee $stubs >"$directory/out" && chmod +x $stubs
printf '%s\n' '# a comment' a b c d >"$tree/tests/extensions.txt"
cd "$tree" || exit 2
export PATH=$directory/bin:$PATH HOME=$directory GIT_CONFIG_NOSYSTEM=yes
git init -q . && git config user.name test && git config user.email test@localhost

# commit SECONDS: all files, at this time
commit() { git add -A && GIT_AUTHOR_DATE="$1 +0000" GIT_COMMITTER_DATE="$1 +0000" git commit -q --allow-empty -m "at $1"; }
# turn STATUS LAST_LINE: of the part whose turn it is
turn() {
    count=$((count + 1))
    tests/nightly.sh --turn >"$directory/out" 2>&1
    local status=$?
    [ "$status; $(tail -n 1 "$directory/out" | sed 's/ in [0-9]* s$//')" = "$1; $2" ] || fail "expected $1; $2, found $status: $(cat "$directory/out")"
}

start=$((1700000000 / (117 * hour) * 117 * hour))
commit $start
turn 0 "== nightly part 0: oracle: passed"
commit $((start + 2 * hour))
turn 0 "== nightly part 0: oracle: passed"
commit $((start + 3 * hour))
turn 0 "== nightly part 1: oracle-emulation: passed"
check "the part runs make" grep -qx "make oracle-emulation" "$directory/out"
commit $((start + 29 * hour))
turn 0 "== nightly part 9: scripts: passed"
commit $((start + 30 * hour))
turn 0 "== nightly part 10: extensions: passed"
check "a third of the extensions" [ "$(grep -x '== [a-z]' "$directory/out" | xargs)" = "== a == d" ]
commit $((start + 69 * hour))
turn 0 "== nightly part 10: extensions: passed"
check "then another third" [ "$(grep -x '== [a-z]' "$directory/out" | xargs)" = "== b" ]
start=$((start + 78 * hour))
touch broken
commit $start
commit $((start + 1 * hour))
turn 1 "== nightly part 0: oracle: passed" # before the change, which ends with the failure
check "its failure is printed" grep -qx "== nightly part 0: oracle: FAILED" "$directory/out"
commit $((start + 60 * hour))
short=$(git rev-parse HEAD^ | cut -c 1-7)
turn 0 "== nightly part 7: other-platforms: FAILED at $short too: reported, not refused"
check "no tree is left" [ "$(git worktree list | wc -l)" -eq 1 ]
count=$((count + 1))
[ "$(tests/nightly.sh 3 5 2>&1; echo $?)" = "$(printf '%s\n' '== nightly part 3: fuzz' '== nightly part 5: arm' \
    'nightly: failed: 3 5' 1)" ] || fail "several parts: $(tests/nightly.sh 3 5 2>&1)"
check "no such part" [ "$(timeout 20 tests/nightly.sh 13 2>&1)" = "nightly: part 13: expected 0 to 12" ]
rm broken
count=$((count + 1))
[ "$(tests/nightly.sh 2>&1 | grep -c ': passed in ')" -eq 13 ] || fail "all parts: $(tests/nightly.sh 2>&1)"

report
