#!/usr/bin/env bash
# Before a push: the format, and the tests that a change concerns (tests/concerns.txt), in float, in double,
# under gcc's sanitizers, and on the emulated CUDA under clang's.
#   tests/check_change.sh [COMMIT]          the change since this commit, uncommitted files included; by
#                                           default since the branch's upstream, else HEAD's parent
#   tests/check_change.sh --list [COMMIT]   prints what it would run
# LIMIT: seconds (300) after which no other build begins; the last line then names what is missing.
set -eu
cd "$(dirname "$0")/.."
[ -e .git ] || { echo "tests/check_change.sh: needs a git clone, since it compares with a commit" >&2 && exit 2; }
list=
[ "${1:-}" != --list ] || { list=yes && shift; }
base=$(git merge-base HEAD "${1:-$(git rev-parse -q --verify '@{upstream}' || echo HEAD^)}")
unset MAKEFLAGS MFLAGS MAKELEVEL TEST OPERATION ONLY # of the make that runs this
export WERROR=yes

changed=$(git diff --name-only "$base" && git ls-files -o --exclude-standard)
[ "$changed" ] || { echo "nothing has changed since $(git log -1 --format='%h %s' "$base")" && exit; }

# line_of FILE: what tests/concerns.txt says of it: programs, then rows; fails where no line matches
line_of() {
    local pattern rest
    while read -r pattern rest; do
        [[ $pattern != '#'* && $pattern && $1 == $pattern ]] && echo "$rest" && return
    done <tests/concerns.txt
    return 1
}
# including HEADER: the sources of the library that include it, as the builds' .d files say
including() {
    find build build-cuda-on-host-sanitize -name '*.d' 2>/dev/null | xargs -r grep -lwF -e "$1" |
        sed -E 's,^[^/]*/,,; s,(\.cu|\.cpp)?\.d$,\1,; s,^parts/,examples/,' | while read -r source; do
        [ ! -e "$source" ] && source=$source.c
        [ ! -e "$source" ] || echo "$source"
    done
}

# A header that no line names concerns what its sources concern; any other file without a line, all tests.
programs= rows=
concerns() {
    local line
    if line=$(line_of "$1"); then
        [ "$line" != 'itself -' ] || line="$(basename "${1##*/test_}" .c) -"
        programs="$programs ${line% *}"
        [ "${line##* }" = - ] || rows="$rows,${line##* }"
    elif [[ $1 == *.h || $1 == *.cuh ]] && [ "${2:-}" != within ]; then
        for source in $(including "$1"); do concerns "$source" within; done
    else
        case $1 in
        *.c | *.h | *.cu | *.cuh | *.cpp) programs=all ;;
        esac
    fi
}
for file in $changed; do concerns "$file"; done

all=
[[ " $programs " != *" all "* ]] || all=yes programs= rows=
names=$([ -z "$programs" ] || printf 'test_%s\n' $programs | sort -u)
[ -z "$rows" ] || names="test_operations"$'\n'$names
scripts=$(grep '\.sh$' <<<"$names" || true)
compiled=$(grep -v '\.sh$' <<<"$names" || true)
say() { printf '\n== %s\n' "$*"; }
say "changed since $(git log -1 --format='%h %s' "$base"): $(wc -l <<<"$changed") files"
if [ "$all" ]; then
    echo "all tests are concerned"
else
    echo "tests: ${names//$'\n'/ }; rows of test_operations: ${rows#,}"
fi
[ -z "$list" ] || exit 0

missing= failed=0
# in_build NAME PROGRAMS MAKE_ARGUMENT...: the programs' tests in this build, or all
in_build() {
    [ "$2$all" ] || return 0
    [ $SECONDS -lt "${LIMIT:-300}" ] || { missing="$missing $1" && return; }
    say "$1"
    env ${rows:+"OPERATION=${rows#,}"} "ONLY=${2//$'\n'/ }" make --no-print-directory "${@:3}" || failed=$((failed + 1))
}
say format
make -s format-check || failed=1
in_build float "$compiled"${scripts:+$'\n'$scripts} CUDA=no test
in_build double "$compiled" CUDA=no REAL=double test
in_build gcc-sanitizers "$compiled" CUDA=no sanitize
in_build clang-sanitizers-on-cuda "$compiled" sanitize-cuda-on-host
say "$SECONDS s; $failed failed${missing:+; not begun within ${LIMIT:-300} s:$missing}"
[ $failed -eq 0 ]
