#!/usr/bin/env bash
# What is tested and measured on a machine with a GPU: bench/gpu.sh DIRECTORY [STEP...]
# Each step writes into the directory; without steps it takes all of them, in this order:
#   test        all tests on the GPU
#   sanitizer   the tests of kernels under compute-sanitizer's memcheck and racecheck
#   precision   errors of a transformer's loss and gradients
#   operations  every operation beside the copy and product rates; the same in PyTorch
#   step        the copy task's training step, as a graph and eager; the same in PyTorch
#   attention   causal linear attention against length
#   generation  a step of generation, as a graph and eager; images drawn pixel by pixel
#   figures     time and memory of attention, and seconds a training step, against length, with
#               pictures; learning to copy by each kind of attention
#   paper       the copy task's paper preset, all 10 000 steps
#   mnist       the image model's paper preset for MNIST_SECONDS (500), from where the last run of this
#               step in the same directory stopped, and samples; MNIST names the directory of the data
# PyTorch's are left out where PYTHON (python3) has no torch.
set -u
out=${1:?usage: bench/gpu.sh DIRECTORY [STEP...]} build=${BUILD:-build} python=${PYTHON:-python3} failures=0
shift
cd "$(dirname "$0")/.." || exit 2
mkdir -p "$out"
out=$(cd "$out" && pwd)

# keep FILE COMMAND...: shows what the command prints and keeps it, under the command itself.
keep() {
    local file=$out/$1 status
    shift
    { echo "\$ $*" && "$@"; } 2>&1 | tee -a "$file"
    status=${PIPESTATUS[0]}
    [ "$status" -eq 0 ] || { failures=$((failures + 1)) && echo "failed ($status): $*" | tee -a "$file" >&2; }
}

step_test() { keep tests.txt make CUDA=yes DEVICE=cuda test; }

step_sanitizer() {
    local tool program
    # One test asks for more memory than there is, which memcheck need not tell.
    for tool in 'memcheck --report-api-errors no' 'racecheck --racecheck-detect-level error'; do
        for program in cuda replay generation sampling attention softmax_attention rows layout elementwise \
            features products optim; do
            keep sanitizer.txt env DEVICE=cuda CK_FORK=no compute-sanitizer --tool $tool \
                --error-exitcode 1 "$build/tests/test_$program"
        done
    done
}

step_precision() { keep precision.txt "$build/bench/precision" --device cuda; }

has_torch() { "$python" -c 'import torch' 2>/dev/null; }

step_operations() {
    local precision
    for precision in float32 tf32 bf16; do
        keep operations.txt "$build/bench/operations" --device cuda --precision $precision \
            --json "$out/operations_$precision.json"
    done
    has_torch && keep operations.txt "$python" bench/peers/operations.py --device cuda
}

step_step() {
    local precision
    for precision in float32 tf32 bf16; do
        keep step.txt "$build/bench/copy_step" --device cuda --precision $precision
        keep step.txt "$build/bench/copy_step" --device cuda --precision $precision --eager
    done
    has_torch && keep step.txt "$python" bench/peers/copy_task_step.py --device cuda
}

step_attention() {
    local precision
    for precision in float32 tf32 bf16; do
        keep attention.txt "$build/bench/attention" --device cuda --precision $precision
    done
}

# draw METHOD BATCH
draw() {
    keep generation.txt "$build/examples/mnist" benchmark --device cuda --precision tf32 \
        --method "$1" --batch "$2" --csv "$out/generation_$1.csv"
}

# An image's keys and values take 13 MB; without a state it takes far longer.
step_generation() {
    local precision
    for precision in float32 tf32; do
        keep generation.txt "$build/bench/generation" --device cuda --precision $precision \
            --json "$out/generation_$precision.json"
        keep generation.txt "$build/bench/generation" --device cuda --precision $precision --eager
    done
    draw linear 10000
    draw stateful-softmax 1000
    draw softmax 100
}

step_figures() {
    local peers=()
    has_torch && peers=(--python "$python")
    keep figures.txt "$build/bench/figure1" --device cuda --output "$out/figure1" "${peers[@]}"
    keep figures.txt "$build/bench/training_speed" --device cuda --precision bf16 \
        --output "$out/training_speed"
    keep figures.txt bench/figure2 --build "$build" --preset paper --device cuda --precision tf32 \
        --output "$out/figure2"
}

step_paper() {
    keep paper.txt "$build/examples/copy_task" --preset paper --device cuda --precision tf32 \
        --score-every 10 --log "$out/copy_task_paper.csv" --plot "$out/copy_task_paper.svg"
}

# Interrupts the command after so many seconds, which is no failure.
for_at_most() {
    timeout --signal INT "$@"
    local status=$?
    [ $status -eq 0 ] || [ $status -eq 124 ]
}

step_mnist() {
    local saved=$out/mnist_paper.safetensors resumed=()
    [ -d "${MNIST:-}" ] || { echo "mnist: left out; MNIST=DIR names the directory of the data" && return; }
    [ -f "$saved" ] && resumed=(--resume "$saved")
    keep mnist.txt for_at_most "${MNIST_SECONDS:-500}" "$build/examples/mnist" train --preset paper \
        --data "$MNIST" --device cuda --precision tf32 --score-every 100 --save "$saved" \
        --log "$out/mnist_paper.csv" --plot "$out/mnist_paper.svg" "${resumed[@]}"
    keep mnist.txt "$build/examples/mnist" sample --model "$saved" --data "$MNIST" --device cuda \
        --output "$out/mnist_paper.png"
}

[ $# -gt 0 ] || set -- test sanitizer precision operations step attention generation figures paper mnist
for step in "$@"; do
    declare -F "step_$step" >/dev/null || { echo "bench/gpu.sh: there is no step $step" >&2; exit 2; }
done
keep machine.txt nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv
keep machine.txt nvcc --version
make CUDA=yes all bench-programs || exit 1
for step in "$@"; do "step_$step"; done
echo "$failures failed"
[ $failures -eq 0 ]
