#!/usr/bin/env bash
# A copy of the tree without an extension, without those that need it, and without what tests/extensions.txt lists
# for them: nothing there uses their names, it builds, and it passes the tests that are left, on its plain kernels.
#   tests/delete_extension.sh NAME
set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this: its jobs are not ours
cd "$(dirname "$0")/.."
deleted=$(awk -v name="${1:?expected the name of an extension}" '
    /^[a-z]/ { needs[$1] = "," $2 "," }
    END {
        if (!(name in needs)) exit 1
        all = name
        for (i = 1; i <= split(all, gone); i++)
            for (other in needs)
                if (index(needs[other], "," gone[i] ",") && !index(" " all " ", " " other " "))
                    all = all " " other
        print all
    }' tests/extensions.txt) || { echo "$0: tests/extensions.txt has no line of $1" >&2 && exit 2; }
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
cp -r Makefile *.mk *.awk tapegrad.h extend.h tensor autograd ops nn optim distributed ext examples tests bench book docs \
    "$directory"
cd "$directory"

# The names that its header has, but neither the nucleus nor the extensions that it needs.
words() { sed 's#/\*.*\*/##; \#/\*#,\#\*/#d' "$@" | grep -oE '\b((op|nn|optim)_[a-z0-9_]+|[A-Z][A-Za-z_]+)\b' | sort -u; }
names=
for name in $deleted; do
    needed=$(awk -v name=$name '$1 == name && gsub(/[a-z_]+/, "ext/&/&.h", $2) { gsub(",", " ", $2); print $2 }' \
        tests/extensions.txt)
    names+=$(comm -23 <(words ext/$name/$name.h) \
        <(words {tensor/tensor,autograd/tape,ops/ops,nn/nn,optim/optim}.h $needed))$'\n'
done
for name in $deleted; do
    sed -i "\\#\"ext/$name/#d; /^ *${name^^}_[A-Z_]*(ROW) /d" tapegrad.h tests/extensions.h
    files=$(awk -v name=$name '$1 == name { for (i = 3; i <= NF; i++) print $i }' tests/extensions.txt)
    rm -rf "ext/$name" $files
    while headers=$(grep '[.]h$' <<<"$files"); do # what includes them, and so on
        files=$(sed 's/.*/"&"/' <<<"$headers" | grep -rlFf - tests ext examples bench || true)
        rm -f $files
    done
done
grep -v '^TAPEGRAD\|^$' <<<"$names" >names
# tests/ may ask for the guard of its header: #ifdef TAPEGRAD_NAME_H
guards=$(printf 'TAPEGRAD_%s_H|' $deleted | tr a-z A-Z)
uses=$(grep -rwFf names --include='*.[ch]' --include='*.cpp' --include='*.cu*' ext examples tests bench book |
    grep -vE '^[^:]*: *(/?\*|//)' | cut -d: -f1 | sort -u | xargs -r grep -LE "${guards%|}" || true) # not in comments
[ -z "$uses" ] || { echo "needed by what is left, see tests/extensions.txt:" $uses && exit 1; }

tests=
for test in tests/test_{operations,layers,tape,optim}.c ext/*/tests/test_*.c; do
    [ ! -f $test ] || tests+=" $(basename $test .c)"
done
make -s CUDA=no CFLAGS=-O1 CC="${CC:-gcc}" ONLY="$tests" library test-programs
DEVICE=plain ONLY=$tests tests/run build
echo "OK: without $deleted"
