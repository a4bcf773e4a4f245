#!/usr/bin/env bash
# bench/gpu.sh with stubs that only log their calls: order, time limits, resuming, the archive.
. "$(dirname "$0")/check.sh"
cd "$(dirname "$0")/.." || exit 2
unset REHEARSE AGAIN NO_BUILD NVCC_ARCHS MNIST CIFAR10 FLA_DIR FT_DIR REAL LIBS DEVICE
export CUDA=host BUILD=$directory/build FLAGS=ARCH=yes PYTHON=$directory/bin/python asked=$directory/asked

# A copy of the tree, whose files can change.
tree=$directory/tree
mkdir "$tree" && cp -r Makefile *.mk tapegrad.h extend.h tensor autograd ops nn optim ext bench examples tests "$tree"
gpu() { # SECONDS PART DIRECTORY: of which programs may take SECONDS
    LIMIT=$(($1 + 8)) PATH=$directory/bin:$PATH "$tree/bench/gpu.sh" "$2" "$directory/$3" >"$directory/$3-$2.log" 2>&1
}

# A stub that logs its call. It fails if its name is in the file bad; calls that begin with the text
# of the file slow take long.
mkdir -p "$directory/bin" "$BUILD"/{tests,bench,programs}
touch "$directory/bad" "$BUILD/libtapegrad.a"
echo none >"$directory/slow"
cat >"$directory/program" <<'END'
#!/bin/bash
call="$(basename "$0") $*"
echo "${CUDA_LAUNCH_BLOCKING:+blocking }$call" >>"$asked"
while [ $# -gt 0 ]; do
    [ "$1" != --json ] || echo '[]' >"$2"
    [ "$1" != --save ] || echo saved >"$2"
    [ "$1" != --log ] || printf 'step,loss,accuracy,learning_rate,seconds\n1,2,0,1,1\n' >"$2"
    shift
done
echo "output of $(basename "$0")"
[[ $call != copy_step* ]] || tar -tzf "$(dirname "$asked")/all.tar.gz" >>"$(dirname "$asked")/archived"
[[ $call != "$(cat "$(dirname "$asked")/slow")"* ]] || sleep 60
! grep -qx "$(basename "$0")" "$(dirname "$asked")/bad"
END
chmod +x "$directory/program"
for program in $(basename -s .c tests/test_*.c ext/*/tests/test_*.c); do ln -s "$directory/program" "$BUILD/tests/$program"; done
for program in attention copy_step generation precision operations figure1 training_speed; do
    ln -s "$directory/program" "$BUILD/bench/$program"
done
ln -sf "$directory/program" "$tree/tests/test_figures.sh"
for program in copy_task images; do ln -s "$directory/program" "$BUILD/programs/$program"; done
for program in compute-sanitizer ncu; do ln -s "$directory/program" "$directory/bin/$program"; done
cat >"$directory/bin/python" <<'END'
#!/bin/bash
case $* in *--methods*) echo fla torch-chunked && exit ;; esac
[ "$*" = --version ] || echo "python $*" >>"$asked"
case $* in *'--compare fla'*) exit 1 ;; esac
END
cat >"$directory/bin/make" <<'END'
#!/bin/bash
printf '%s\n' "$@" >"$(dirname "$asked")/make"
END
chmod +x "$directory"/bin/*
cp -r "$BUILD" "$BUILD-ARCH"

calls() { grep -c "$1" "$asked"; }
holds() { tar -tzf "$directory/$1.tar.gz" | grep -q "^$1/$2\$"; }

# -------------------------------------------------------------------------------------------- prove
export NO_BUILD=yes
check "prove" gpu 200 prove all
tests=$(basename -s .c tests/test_*.c ext/*/tests/test_*.c | grep -cvx test_speech) # which needs no GPU
check "every test is run" [ "$(grep '^test_' "$asked" | sort -u | wc -l)" -eq $((tests + 1)) ] # test_figures.sh
check "a smoke test comes first" [ "$(head -n 2 "$asked" | sort | tr '\n' ';')" = \
    "attention --goals --quick --seconds 0 --device cuda;test_cuda ;" ]
check "attention is one of the first eight" sh -c "head -n 10 '$asked' | tail -n 8 | grep -q test_attention"
check "goals are measured with and without FLAGS" [ "$(calls '^attention --goals --device cuda')" -eq 2 ]
check "the first line is the command" grep -q "^\\$ $BUILD-ARCH/bench/attention --goals" "$directory/all/prove/goals-flags.txt"
check "its output follows" grep -qx "output of attention" "$directory/all/prove/goals.txt"
for file in prove/test_attention.status prove/goals.json prove/goals-flags.txt prove/copy_step_tf32.json; do
    check "the archive has $file" holds all "$file"
done
check "already before the end, since the machine may vanish" grep -q prove/test_rows.status "$directory/archived"
before=$(wc -l <"$asked")
check "prove again" gpu 200 prove all
check "what stands is not run again" [ "$(wc -l <"$asked")" -eq "$before" ]

# A part ends within its time limit, and the next call runs the missing programs.
echo "test_attention " >"$directory/slow"
: >"$asked"
start=$SECONDS
gpu 6 prove short
status=$?
check "an unfinished part does not succeed" [ $status -ne 0 ]
check "it ends in time" [ $((SECONDS - start)) -le 20 ]
check "it reports what is missing" grep -q 'for the next call:.* goals.* test_attention' "$directory/short-prove.log"
check "the others have a status" [ -f "$directory/short/prove/test_rows.status" ]
check "the archive is written" holds short prove/test_rows.status
echo none >"$directory/slow"
: >"$asked"
check "the next call ends the part" gpu 200 prove short
check "with the test that was interrupted" [ "$(calls '^test_attention ')" -eq 2 ] # and with FLAGS
check "without those that have passed" [ "$(calls '^test_tape')" -eq 0 ]

# -------------------------------------------------------------------------------------------- check
echo test_rows >"$directory/bad"
gpu 200 prove failing
check "a failed test fails the part" [ $? -eq 1 ]
check "it is named" grep -q 'FAILED: test_rows-flags test_rows;\|FAILED: test_rows test_rows-flags;' "$directory/failing-prove.log"
: >"$asked"
gpu 200 check failing
check "it is run again with blocking launches" [ "$(calls '^blocking test_rows')" -eq 2 ]
check "memcheck comes before racecheck" [ "$(grep -n 'compute-sanitizer --tool' "$asked" |
    sed -n 's/.*--tool \([a-z]*\) .*test_\(attention\|products\|rows\|generation\|replay\)$/\1/p' | uniq | tr '\n' ' ')" = "memcheck racecheck " ]
check "kernels are profiled" grep -q '^ncu --set full --clock-control none .*-k regex:mma_.*bench/attention --goals' "$asked"
rm "$directory/bin/compute-sanitizer" "$directory/bin/ncu"
: >"$directory/bad"
check "a check without the tools" gpu 200 check all
check "says so" grep -q 'compute-sanitizer was not found' "$directory/all-check.log"
rm "$directory/failing/prove/"*.status "$directory/failing/prove/goals.txt"

# --------------------------------------------------------------------------------- rivals and learn
: >"$asked"
gpu 200 rivals all
check "a rival that differs from float64 fails" [ $? -eq 1 ]
check "and is not measured" [ "$(calls 'goals.py fla ')" -eq 0 ]
check "another is" [ "$(calls 'goals.py torch-chunked')" -eq 1 ]
check "figure1 has a limit and the interpreter" grep -q "^figure1 .*--total [0-9]* .*--python $PYTHON" "$asked"

mkdir "$directory/mnist" && export MNIST=$directory/mnist
echo "images train" >"$directory/slow"
: >"$asked"
REHEARSE=yes gpu 16 learn all # which has seconds, not the better part of a minute, for MNIST's end
check "the copy task is learned thrice" [ "$(calls '^copy_task --preset paper')" -eq 3 ]
check "figure 2 has them" [ "$(cut -d, -f1 "$directory/all/learn/figure2.csv" | tr '\n' ' ')" = "method softmax lsh-4 linear " ]
check "MNIST is interrupted" grep -q 'for the next call: mnist_train' "$directory/all-learn.log"
echo none >"$directory/slow"
: >"$asked"
check "the next call" gpu 100 learn all
check "resumes it" grep -q "^images train .*--resume $directory/all/learn/mnist.safetensors" "$asked"
check "and learns nothing again" [ "$(calls '^copy_task')" -eq 0 ]
: >"$asked"
MNIST= CIFAR10=$directory/mnist gpu 100 learn all
check "CIFAR-10 in place of MNIST" grep -q "^images train --preset cifar10-paper --data $directory/mnist" "$asked"
check "checkpoints are not in the archive" sh -c "! tar -tzf '$directory/all.tar.gz' | grep safetensors"

# ----------------------------------------------------------------------------------------- building
unset NO_BUILD
gpu 20 learn built
check "make is called" grep -qx "BUILD=$BUILD" "$directory/make"
rm "$directory/make"
find "$tree" -type f -exec touch {} +
gpu 20 learn built
check "files with new times are not compiled again" [ ! -e "$directory/make" ]
echo '/* changed */' >>"$tree/ops/ops.h"
gpu 20 learn built
check "a changed file is new for make" grep -qx -A1 -e -W "$directory/make"
check "it alone" [ "$(grep -x -A1 -e -W "$directory/make" | tr '\n' ' ')" = "-W ops/ops.h " ]
check "all others are old" [ "$(grep -cx -e -o "$directory/make")" -gt 100 ]

report
