#!/usr/bin/env bash
# Nucleus and extensions: the nucleus includes no extension; an extension includes public headers, extend.h, its
# own files and other extensions' public headers; its cpu/ and cuda/ also the shared headers of their backend, and
# kernels.h and cuda/*.cuh of other extensions.
# tests/nucleus.txt lists the nucleus's files, tests/extend.txt what extend.h offers beyond public headers: its
# headers, the functions that an installed library exports, which alone definitions of extensions may call, and
# those for the tree. An exported name has the prefix of its directory.
#   tests/check_includes.sh           reports every line and file that breaks this
#   tests/check_includes.sh --write   writes both lists as the tree is: a file or a name enters by a decision
set -u
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 2
bad=$(mktemp) && trap 'rm -f "$bad"' EXIT

nucleus='tensor autograd ops nn optim'
grep -rnE '#include "(ext/|extend\.h)' --include='*.[ch]' --include='*.cu*' $nucleus distributed >"$bad"
public='tapegrad\.h|tensor/tensor\.h|autograd/tape\.h|ops/ops\.h|nn/nn\.h|optim/optim\.h'
for file in $(find ext \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -not -path '*/tests/*'); do
    allowed="extend\.h|$public|$(cut -d/ -f1,2 <<<"$file")/.*|ext/([a-z_]+)/\2\.h"
    case $file in
    */cpu/*) allowed="$allowed|ext/[a-z_]+/kernels\.h|ops/cpu/shared/.*" ;;
    */cuda/*)
        allowed="$allowed|ext/[a-z_]+/(kernels\.h|cuda/[a-z_]+\.cuh)|tensor/cuda/kernel\.cuh|ops/cuda/shared/.*"
        allowed="$allowed|optim/cuda/step\.cuh"
        ;;
    esac
    grep -nE '#include "' "$file" | grep -vE "#include \"($allowed)\"" | sed "s#^#$file:#" >>"$bad"
done

# The nucleus's files: outside of backends.
files() { find $nucleus -type f \( -name '*.[ch]' \) -not -path '*/cpu/*' -not -path '*/cuda/*' | sort; }
# The headers behind extend.h that tapegrad.h does not include, and the functions that they declare, but for
# the versions of kernels, which kernels_of(x)->... calls.
headers() { ${CC:-cc} -I. -MM "$1" | tr -d '\\\n' | tr -s ' ' '\n' | grep '\.h$' | sort -u; }
offered() {
    comm -13 <(headers tapegrad.h) <(headers extend.h) | sed 's/^/header /'
    ${CC:-cc} -std=gnu11 -fopenmp -I. -fsyntax-only -aux-info "$bad.names" -x c extend.h
    comm -13 <(headers tapegrad.h) <(headers extend.h) | sed 's#.*#^/\\* \\(\\./\\)\\?&:#' >"$bad.headers"
    grep -f "$bad.headers" "$bad.names" | sed -E 's/.*[ *]([a-z_0-9]+) \(.*/\1/' |
        grep -vE '_(plain|cpu|bf16|cuda)$' | sort -u >"$bad.functions"
    { printf '%s\n' '#include "tapegrad.h"' '#pragma GCC visibility push(hidden)' '#include "extend.h"' 'const void *const all[] = {' &&
        sed 's/$/,/' "$bad.functions" && echo '};'; } | ${CC:-cc} -std=gnu11 -fopenmp -w -I. -c -x c - -o "$bad.o"
    readelf -sW "$bad.o" | awk '{ print $5 == "LOCAL" ? "inline" : $6 == "DEFAULT" ? "exported" : "hidden", $8 }' |
        sort -k 2 | join -1 2 -o 1.1,0 - "$bad.functions" | sort
    rm -f "$bad".?*
}
if [ "${1:-}" = --write ]; then
    files >tests/nucleus.txt
    offered >tests/extend.txt
    exit
fi
diff tests/nucleus.txt <(files) >>"$bad" || echo 'tests/nucleus.txt: see tests/check_includes.sh' >>"$bad"
diff tests/extend.txt <(offered) | grep '^>' >>"$bad" && echo 'tests/extend.txt: see tests/check_includes.sh' >>"$bad"
hidden=$(sed -n 's/^hidden //p' tests/extend.txt | paste -sd '|')
find ext -name '*.[ch]' -not -path '*/cpu/*' -not -path '*/cuda/*' -not -path '*/tests/*' -print0 |
    xargs -0 grep -nE "\\b($hidden)\\(" | sed 's/$/   is not exported/' >>"$bad"
grep '^exported' tests/extend.txt | grep -vE ' (device|tensor|shape|error|memory|kernel|tape|op|nn|params|optim)_' |
    sed "s/$/   lacks its directory's prefix/" >>"$bad"
cat "$bad"
! [ -s "$bad" ]
