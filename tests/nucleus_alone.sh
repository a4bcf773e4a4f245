#!/usr/bin/env bash
# The tree without any directory named cpu/ or cuda/: passes the tests of operations, layers, optimizers, files and
# examples on its plain kernels. Then the nucleus: without ext/ too. Both build by one command line, which
# docs/building.md prints, where these directories are still there.
#   tests/nucleus_alone.sh [DIRECTORY]   a new directory, where the copy is made and kept (default: a temporary one)
set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this: its jobs are not ours
cd "$(dirname "$0")/.."
directory=${1:-$(mktemp -d)}
if [ $# -gt 0 ]; then mkdir "$directory"; else trap 'rm -rf "$directory"' EXIT; fi
directory=$(realpath "$directory")
# Its commands, with -O0 behind their options. They run beside the tests' compilation, since each uses one processor.
mkdir "$directory/bin"
printf '#!/bin/sh\nPATH=%q; exec %s "$@" -O0\n' "$PATH" "${CC:-cc}" >"$directory/bin/cc" && chmod +x "$directory/bin/cc"
without_backends=$(tests/printed.sh docs/building.md 'distributed ext -name')
nucleus=$(tests/printed.sh docs/building.md -DTAPEGRAD_NUCLEUS)
mkdir "$directory/whole"
cp -r tapegrad.h extend.h tensor autograd ops nn optim distributed ext examples/two_moons.c "$directory/whole"
mv "$directory/whole/two_moons.c" "$directory/whole/program.c"
as_printed() { # COMMAND
    (cd "$directory/whole" && PATH=$directory/bin:$PATH && eval "$1" && ./a.out >output)
}
cp -r Makefile *.mk *.awk tapegrad.h extend.h tensor autograd ops nn optim distributed ext examples tests "$directory"
cd "$directory"
find tensor autograd ops nn optim distributed ext -depth \( -name cpu -o -name cuda \) -exec rm -rf {} +

as_printed "$without_backends" &
one_line=$!
tests='operations elementwise rows products layout random attention softmax_attention visible_pairs gates vectors layers
       qwen3_next params optim checkpoint distributed file tape recompute replay recovery math'
names="$(printf 'test_%s ' $tests)$(basename -s .c ext/*/tests/test_*.c | xargs)"
make -s CUDA=no CC="${CC:-gcc}" ONLY="$names" test-programs build/examples/copy_task build/examples/tiny_gpt
wait $one_line
echo '== one command line'
cat whole/output
echo '== the tests'
build/examples/copy_task 200
build/examples/tiny_gpt 60
DEVICE=plain ONLY=$names tests/run build

rm -r ext build tests/kinds.c
as_printed "$nucleus" &
one_line=$!
tests='operations elementwise rows products layout random attention softmax_attention visible_pairs
       decay_gradient layers params optim checkpoint file tape math'
names=$(printf 'test_%s ' $tests)
make -s CUDA=no CFLAGS=-O1 CC="${CC:-gcc}" ONLY="$names" test-programs build/examples/copy_task
wait $one_line
echo '== one command line: the nucleus'
cat whole/output
echo '== the tests of the nucleus'
build/examples/copy_task 200
DEVICE=plain ONLY=$names tests/run build
