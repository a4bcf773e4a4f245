#!/usr/bin/env bash
# The tree without any directory named cpu/ or cuda/: builds by one command line, and passes the tests of
# operations, layers, optimizers, files and examples on its plain kernels. Then the nucleus: without ext/ too.
#   tests/nucleus_alone.sh [DIRECTORY]   where the copy is made and kept (default: a temporary one)
set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this: its jobs are not ours
cd "$(dirname "$0")/.."
directory=${1:-$(mktemp -d)}
[ $# -gt 0 ] || trap 'rm -rf "$directory"' EXIT
mkdir -p "$directory"
cp -r Makefile *.mk *.awk tapegrad.h extend.h tensor autograd ops nn optim distributed ext examples tests "$directory"
cd "$directory"
find tensor autograd ops nn optim distributed ext -depth \( -name cpu -o -name cuda \) -exec rm -rf {} +

# One command line, beside the tests' compilation, since it uses one processor.
set -- $(find tensor autograd ops nn optim distributed ext -name '*.c' -not -path '*/mpi/*' -not -path '*/tests/*')
${CC:-cc} -O0 -march=native -I. -o two_moons examples/two_moons.c "$@" -lm &
one_line=$!
tests='operations elementwise rows products layout convolution batchnorm random attention softmax_attention
       gates delta_rule lsh_attention features recurrent ctc vectors layers qwen3_next params optim muon schedule_free
       losses checkpoint
       distributed file tape recompute replay recovery sampling math'
names=$(printf 'test_%s ' $tests)
make -s CUDA=no CC="${CC:-gcc}" ONLY="$names" test-programs build/examples/copy_task build/examples/tiny_gpt
wait $one_line
echo '== one command line'
./two_moons
echo '== the tests'
build/examples/copy_task 200
build/examples/tiny_gpt 60
DEVICE=plain ONLY=$names tests/run build

rm -r ext build
${CC:-cc} -DTAPEGRAD_NUCLEUS -O0 -march=native -I. -o two_moons examples/two_moons.c \
    $(find tensor autograd ops nn optim distributed -name '*.c' -not -path '*/mpi/*') -lm &
one_line=$!
tests='operations elementwise rows products layout convolution batchnorm random attention softmax_attention
       decay_gradient lsh_attention features ctc params optim checkpoint file tape sampling math'
names=$(printf 'test_%s ' $tests)
make -s CUDA=no CFLAGS=-O1 CC="${CC:-gcc}" ONLY="$names" test-programs build/examples/copy_task build/examples/tiny_gpt
wait $one_line
echo '== one command line: the nucleus'
./two_moons
echo '== the tests of the nucleus'
build/examples/tiny_gpt 60
DEVICE=plain ONLY=$names tests/run build
