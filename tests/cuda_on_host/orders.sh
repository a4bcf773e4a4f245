#!/usr/bin/env bash
# Trains a small copy task on the emulation with several orders of threads: in each precision, all
# checkpoints are bitwise equal.   orders.sh BUILD
set -eu
build=${1:?usage: orders.sh BUILD}
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
for precision in float32 tf32 bf16; do
    for seed in 0 1 20 3; do
        TAPEGRAD_CUDA_SEED=$seed "$build/programs/copy_task" --device cuda --precision $precision --quiet \
            --length 17 --layers 1 --heads 3 --head-dim 12 --feed-forward 50 --batch 5 --dropout 0.1 \
            --steps 12 --clip 1 --save "$directory/$seed.safetensors" >/dev/null
        cmp "$directory/0.safetensors" "$directory/$seed.safetensors"
    done
    echo "orders: $precision: the same to the last bit"
done
