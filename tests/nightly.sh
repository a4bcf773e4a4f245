#!/usr/bin/env bash
# The long checks, in thirteen parts: make nightly runs all, .ci/run one per run.
#   tests/nightly.sh [PART...]             0 to 12 (default: all)
#   tests/nightly.sh --turn [--base COMMIT] the part whose turn it is by the time of HEAD's commit, another
#       every three hours. A part that fails at COMMIT too is reported, and is no failure; by default COMMIT
#       is the newest one that is three hours older than HEAD, since a push has several commits.
set -eu
cd "$(dirname "$0")/.."
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this: its jobs are not ours
export WERROR=yes

names=(oracle oracle-emulation emulation-double fuzz faults arm planted-faults other-platforms processes scripts extensions release mutants)
oracle() { make CUDA=no oracle-float oracle-double oracle-differences; }
oracle-emulation() { make oracle-emulation; }
emulation-double() { make test-cuda-on-host-double; }
fuzz() { make CUDA=no fuzz; }
faults() { make CUDA=no faults; }
arm() { tests/aarch64; }
planted-faults() { make test-cuda-faults; }
other-platforms() {
    tests/memcheck
    make CUDA=no one-file
    tests/one_file.sh build platforms
}
processes() {
    make CUDA=no REAL=double ONLY=test_mpi.sh test
    make CUDA=no ONLY=test_mpi.sh sanitize
}
# Chromium is large, and installed for this part alone.
scripts() {
    make CUDA=no REAL=double ONLY='test_install.sh test_instructions.sh test_readme.sh' test
    make BOOK=pages deps
    make CUDA=no PAGES=pages test-book
}
# A third of them, another third after a round of all parts.
extensions() {
    local names third=$(($(git log -1 --format=%ct 2>/dev/null || date +%s) / (10800 * ${#names[@]}) % 3))
    names=$(awk -v third=$third '/^[a-z]/ && n++ % 3 == third { print $1 }' tests/extensions.txt)
    for name in $names; do
        echo "== $name"
        tests/delete_extension.sh "$name"
    done
}
# What is released: archives, CMake, packages, man pages.
release() {
    make RELEASE=yes deps
    for check in tests/release/*.sh; do
        echo "== $check"
        "$check"
    done
}

# Twenty of those that tests are known to find, others for each commit.
mutants() { tests/mutants.py --sample 20; }

# One part: the first command that fails ends it.
if [[ $# -eq 1 && $1 != --turn ]]; then
    [[ $1 =~ ^[0-9]+$ && $1 -lt ${#names[@]} ]] || { echo "nightly: part $1: expected 0 to $((${#names[@]} - 1))" >&2 && exit 2; }
    printf '== nightly part %d: %s\n' "$1" "${names[$1]}"
    "${names[$1]}"
    printf '== nightly part %d: %s: passed in %d s\n' "$1" "${names[$1]}" $SECONDS
    exit
fi

# fails_before COMMIT PART: whether the part fails at this commit too; at a commit without this script it does not
fails_before() {
    local tree status=0
    tree=$(mktemp -d)/tree
    git worktree add -q --detach "$tree" "$1" || return 1
    [ ! -x "$tree/tests/nightly.sh" ] || (cd "$tree" && tests/nightly.sh "$2") || status=1
    git worktree remove --force "$tree"
    [ $status -ne 0 ]
}

if [ "${1:-}" = --turn ]; then
    time=$(git log -1 --format=%ct)
    part=$((time / 10800 % ${#names[@]}))
    base=${3:-$(git rev-list -1 --before=$((time - 10800)) HEAD)}
    "$0" $part && exit
    printf '== nightly part %d: %s: FAILED\n' $part "${names[part]}"
    [ "$base" ] && printf '== the same at %s\n' "$(git log -1 --format='%h %s' "$base")" && fails_before "$base" $part || exit 1
    printf '== nightly part %d: %s: FAILED at %s too: reported, not refused\n' $part "${names[part]}" "${base:0:7}"
    exit
fi

failed=
[ $# -gt 0 ] || set -- "${!names[@]}"
for part in "$@"; do
    "$0" "$part" || failed="$failed $part"
done
[ -z "$failed" ] || { echo "nightly: failed:$failed" && exit 1; }
