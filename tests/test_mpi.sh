#!/usr/bin/env bash
# The programs under mpirun (or $MPIRUN): ranks that are processes. KILLS: how many runs are killed (3).
. "$(dirname "$0")/check.sh"
mpirun=${MPIRUN:-mpirun} tree=$PWD
case $build in /*) ;; *) build=$PWD/$build ;; esac
export OMP_NUM_THREADS=1 TAPEGRAD_CUDA_ON_HOST_DEVICES=0
export ASAN_OPTIONS=detect_leaks=0 # MPI's
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers have no other user
if [ ! -f "$build/libtapegrad_mpi.a" ] || ! command -v "$mpirun" >/dev/null; then
    echo "not tested: programs of several processes, without MPI"
    exit
fi
"$mpirun" --version | grep -q 'Open MPI' && open=(--oversubscribe --bind-to none -quiet) || open=()

# processes N FILE ARGUMENT..., ranks N PROGRAM ARGUMENT...: at most a minute
processes() { timeout 60 "$mpirun" ${open[@]+"${open[@]}"} -np "$1" "$build/$2" "${@:3}"; }
ranks() { processes "$1" "programs/$2" "${@:3}"; }

# beside FIRST SECOND: rank 0 runs the program's command line FIRST, ranks 1 and 2 SECOND
beside() {
    timeout 60 "$mpirun" ${open[@]+"${open[@]}"} -np 1 ${3:+-wdir "$3"} "$build/programs/"$1 : -np 2 ${4:+-wdir "$4"} "$build/programs/"$2
}

# says STATUS SENTENCE COMMAND...: exits with the status, and prints the sentence once, as one line
says() {
    "${@:3}" >"$directory/output" 2>&1
    local status=$?
    [ "$status" -eq "$1" ] && [ "$(grep -cF -- "$2" "$directory/output")" -eq 1 ] && return
    echo "status $status: $(cat "$directory/output")"
    return 1
}

# near FILE FILE COLUMN TOLERANCE: the last rows of two logs agree
near() {
    awk -F, -v column="$3" -v tolerance="$4" 'END { a[++n] = $column } FNR == 1 && NR > 1 { a[++n] = last }
        { last = $column } END { d = a[1] - a[2]
        exit !(a[1] ~ /^-?[0-9]/ && a[2] ~ /^-?[0-9]/ && d <= tolerance && -d <= tolerance) }' "$1" "$2" ||
        { echo "$(tail -n 1 "$1"), expected $(tail -n 1 "$2")" && return 1; }
}

cd "$directory" || exit 1
small="--device cpu --threads 1 --layers 1 --heads 2 --head-dim 8 --feed-forward 16"
copy="$small --length 16 --symbols 3 --batch 6 --quiet"

# ------------------------------------------------------------------------- a sequence over processes
# The largest error of a position, beside one process
positions() {
    processes "$1" bench/sequence_parallel --device cpu --positions 1000 --size 8 --check parts "${@:2}" | tee parts.txt
    awk -v most="$([ "${REAL:-float}" = double ] && echo 1e-12 || echo 2e-5)" '
        / per position: / { n++; wrong += !($7 ~ /^[0-9]/ && $7 + 0 <= most + 0) } END { exit !(n == 4 && !wrong) }' parts.txt
}
check "linear attention on 2 ranks" positions 2
check "with a decay, on 4" positions 4 --decay --uneven
check "the delta rule on 2 ranks" positions 2 --delta-rule
check "with a decay, on 4" positions 4 --delta-rule --decay --uneven

# --------------------------------------------------------------------- a run does not depend on ranks
tight=1e-4 && [ "${REAL:-float}" = float ] || tight=1e-8 # the logs have nine digits
check "one process" "$build/programs/copy_task" $copy --steps 40 --log 1.csv --save 1.safetensors
for n in 1 2 4; do
    check "$n ranks" ranks $n copy_task $copy --steps 40 --log r$n.csv --save r$n.safetensors
    check "$n ranks learn as one process" near r$n.csv 1.csv 2 $tight
done
check "one rank is one process" cmp r1.safetensors 1.safetensors
check "again" ranks 4 copy_task $copy --steps 40 --save again.safetensors
check "two runs are bitwise equal" cmp again.safetensors r4.safetensors
from=$copy steps=0
for n in 4 2 1 3; do
    steps=$((steps + 10))
    check "to step $steps on $n ranks" ranks $n copy_task $from --steps $steps --save part.safetensors
    from="--resume part.safetensors --device cpu --threads 1 --quiet --log part.csv"
done
check "ends as one process" near part.csv 1.csv 2 $tight
check "rank 0 alone prints" [ "$(ranks 3 copy_task $copy --steps 5 2>&1 | grep -c '^final')" -eq 1 ]

head -n 60 "$OLDPWD/examples/sonnets.txt" >text
text="--train text --split 0.1 --context 16 $small --steps 12 --warm-up 2 --batch 6 --quiet --evaluate-every 4"
for optimizer in adamw muon schedule-free; do
    check "language_model by $optimizer" "$build/programs/language_model" train $text --optimizer $optimizer --log 1.csv
    check "on 4 ranks" ranks 4 language_model train $text --optimizer $optimizer --log 4.csv
    check "learns as one process" near 4.csv 1.csv 2 1e-3
    check "and evaluates as it" near 4.csv 1.csv 3 1e-3
done
accumulate="--batch 2 --tokens-per-update 96"
check "with micro-batches" ranks 2 language_model train $text $accumulate --log 2.csv
check "as one" "$build/programs/language_model" train $text $accumulate --log 1.csv
check "process" near 2.csv 1.csv 2 1e-3

idx() { # NAME COUNT: images of 4 x 4
    { printf '\0\0\010\003\0\0\0'"\\$(printf %o "$2")"'\0\0\0\004\0\0\0\004' && head -c $((16 * $2)) text; } >"$1-images-idx3-ubyte"
    { printf '\0\0\010\001\0\0\0'"\\$(printf %o "$2")" && head -c "$2" /dev/zero; } >"$1-labels-idx1-ubyte"
}
idx train 20 && idx t10k 7
images="train --data . $small --rows 4 --columns 4 --logistics 3 --batch 5 --steps 8 --quiet --evaluate-every 4"
check "images" "$build/programs/images" $images --log 1.csv
check "images on 3 ranks" ranks 3 images $images --log 3.csv
check "learns as one process" near 3.csv 1.csv 2 1e-3
check "and evaluates as it" near 3.csv 1.csv 3 1e-3

le32() { printf "\\x$(printf %02x $(($1 % 256)))\\x$(printf %02x $(($1 / 256 % 256)))\\0\\0"; }
recording() { # FILE SAMPLES: mono, 8 kHz, 16 bits
    { printf RIFF && le32 $((36 + 2 * $2)) && printf 'WAVEfmt ' && le32 16 && printf '\1\0\1\0' && le32 8000 && le32 16000 &&
        printf '\2\0\20\0data' && le32 $((2 * $2)) && head -c $((2 * $2)) "$build/libtapegrad_mpi.a"; } >"$1"
}
if [ -x "$build/programs/speech" ]; then
    mkdir recordings
    for name in {0..9}_{a,b,c}_{0,5,6,45}; do recording "recordings/$name.wav" $((1600 + 100 * ${name%%_*})); done
    speech="train --data recordings $small --context 1 --lookahead 1 --batch 5 --dropout 0 --strings 6 --steps 6 --quiet"
    check "speech" "$build/programs/speech" $speech --log 1.csv
    check "speech on 3 ranks, of other numbers of phonemes" ranks 3 speech $speech --log 3.csv
    check "learns as one process" near 3.csv 1.csv 2 1e-3
fi

# ------------------------------------------------------- programs of docs/distributed.md, and their library
awk '/^```c$/ { inside = 1; file = "page" ++n ".c"; next } /^```$/ { inside = 0 } inside { print > file }' \
    "$tree/docs/distributed.md"
compile() {
    "${MPICC:-mpicc}" -std=gnu11 -fopenmp -I"$tree" $([ "${REAL:-float}" = float ] || echo -DTAPEGRAD_DOUBLE) \
        $(nm "$build/libtapegrad.a" | grep -q -m1 __asan && echo -fsanitize=address,undefined) "$@"
}
link() { compile "$@" "$build/libtapegrad.a" ${LIBS:--ldnnl -lm}; }
sources="$tree/distributed/mpi/mpi.c"
check "the page's first program" link page1.c "$build/libtapegrad_mpi.a" -o page1
check "its second" link page2.c "$build/libtapegrad_mpi.a" -o page2
check "exchanges in blocks" link -DMAX_COUNT=2 page1.c "$sources" -o blocks
check "with NCCL it compiles" compile -Wall -Wextra -Werror -fsyntax-only -DTAPEGRAD_NCCL \
    -I"$tree/tests/cuda_on_host/include" "$sources"
# loss N PROGRAM: what N ranks print; is_small LOSS; alike LOSS LOSS: within a tenth, of sums in another order
loss() { timeout 60 "$mpirun" ${open[@]+"${open[@]}"} -np "$1" "./$2" | sed -n "s/^$1 ranks: loss //p"; }
is_small() { awk -v loss="$1" 'BEGIN { exit !(loss != "" && loss + 0 < 0.01) }'; }
alike() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && b > 0.9 * a && b < 1.1 * a) }'; }
for n in 1 2 3; do
    found=$(loss $n page1)
    check "the first on $n ranks learns: $found" is_small "$found"
    check "alike in blocks" alike "$found" "$(loss $n blocks)"
done
check "the second on 4 ranks learns" is_small "$(loss 4 page2)"

# ------------------------------------------------------------------------------------------- failures
check "a bad option" says 2 "copy_task: rank 0 of 3: --steps x: expected a whole number" ranks 3 copy_task --steps x
for other in "--steps 9" "--seed 2" "--layers 2" "--batch 9" "--save a" "--quiet" "--dropout 0.5" "--clip 2" \
    "--attention softmax" "--learning-rate 0.1" "--precision bf16"; do
    check "$other on some ranks" says 1 "rank 0 of 3: the command lines of ranks 0 and 1 differ" \
        beside "copy_task $copy --steps 8" "copy_task $copy --steps 8 $other"
done
mkdir a b && cp again.safetensors a/c && cp part.safetensors b/c && cp text a
resume="copy_task --resume c --steps 60 --device cpu --threads 1 --quiet"
"$build/programs/copy_task" $copy --steps 30 --save b/c >/dev/null 2>&1
check "other checkpoints on some ranks" says 1 "the steps of the optimizers of ranks 0 and 1 differ" beside "$resume" "$resume" a b
# All processes stop when rank 0 has printed, as those of a virtual machine may, before it has ended the others.
halted() {
    beside "$resume" "$resume" a b >halted.txt 2>&1 &
    for _ in $(seq 300); do grep -q differ halted.txt && break; sleep 0.01; done
    pkill -STOP -f "$build/programs/$resume"
    sleep 0.5
    pkill -CONT -f "$build/programs/$resume"
    wait
    says 1 "the steps of the optimizers of ranks 0 and 1 differ" sh -c 'cat halted.txt; exit 1'
}
check "and where all processes stop for half a second" halted
rm b/c
check "none on some ranks" says 1 "rank 0 of 3: " beside "$resume" "$resume" b a
check "an error on some ranks, for which the others wait" says 1 "rank 0 of 3: text: " \
    beside "language_model train $text" "language_model train $text" b a
other=$(command -v mpirun.mpich) && "$mpirun" --version | grep -q 'Open MPI' &&
    check "another MPI's mpirun" grep -q "mpirun has started 2 processes, but this program's MPI knows of 1" \
        <(timeout 60 "$other" -np 2 "$build/programs/copy_task" $copy --steps 5 2>&1)
check "fewer sequences than ranks" says 2 "--batch 2: expected at least one for each of the 3 ranks" \
    ranks 3 copy_task $copy --batch 2
check "more threads than processors" says 0 "rank 1: 900 threads on " \
    ranks 2 copy_task ${copy/--threads 1/--threads 900} --steps 1
one=$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//') # the first processor that this shell may use
on_one_processor() { timeout 60 taskset -c "$one" "$mpirun" ${open[@]+"${open[@]}"} -np 2 "$build/programs/copy_task" $copy --steps 1; }
check "more ranks than processors" says 0 "2 ranks of one thread on 1 processors: start at most 1" on_one_processor
check "a checkpoint that is not there" says 1 "nowhere" ranks 3 copy_task --resume nowhere --steps 9
check "a folder that is not there" says 2 "--save nowhere/a.safetensors: expected a file that can be written" \
    ranks 3 copy_task $copy --steps 5 --save nowhere/a.safetensors

long="$copy --steps 1000000 --save-every 5 --save long.safetensors"
begin() { rm -f long.safetensors; ranks 3 copy_task $long >long.txt 2>&1 & started=$!; }
programs() { pgrep -f "^$build/programs/copy_task $long"; }
nothing_runs() { for _ in $(seq 20); do programs || return 0; sleep 0.1; done; return 1; }
saved() { for _ in $(seq 300); do [ -f long.safetensors ] && return; sleep 0.1; done; return 1; }
ends() { # STATUS...
    for _ in $(seq 100); do kill -0 $started 2>/dev/null || break; sleep 0.1; done
    ! kill -0 $started 2>/dev/null || { echo "still running after 10 s" && kill -9 $started && return 1; }
    wait $started
    local status=$?
    [[ " $* " = *" $status "* ]] || { echo "status $status: $(cat long.txt)" && return 1; }
}
whole() { "$build/programs/copy_task" --load long.safetensors --evaluate --device cpu --quiet; }
begin && check "saves" saved
kill -USR1 "$(pgrep -f "^$mpirun.* $build/programs/copy_task $long" | tail -n 1)"
check "a signal to mpirun means 'start me again'" ends 75
check "after saving" whole
begin && check "saves" saved
kill -TERM "$(programs | tail -n 1)"
check "a signal to one rank stops all" ends 75
check "after saving" whole
for signal in INT TERM; do
    begin && check "saves" saved
    kill -$signal "$(pgrep -f "^$mpirun.* $build/programs/copy_task $long" | tail -n 1)"
    check "SIG$signal to mpirun ends all" ends 1 9 15 75 130 137 143
    check "the checkpoint is whole" whole
    check "no process is left" nothing_runs
done
for i in $(seq "${KILLS:-3}"); do # each rank in turn
    begin && check "saves" saved && sleep 0.$RANDOM
    kill -9 "$(programs | sed -n $((i % 3 + 1))p)"
    check "a rank that is killed ends all" ends 137 9 # Open MPI, MPICH
    check "the checkpoint is whole" whole
    check "no process is left" nothing_runs
done

report
