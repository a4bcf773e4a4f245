#!/usr/bin/env bash
# The programs and commands that measure tapegrad beside llm.c and KANN, at tiny sizes.
# LLMC=DIR KANN=DIR MNIST=DIR PYTHON=...: their sources, images and a Python with PyTorch, to run all of it.
. "$(dirname "$0")/check.sh"
python=${PYTHON:-python3}
gpt2="$build/bench/gpt2_step --threads 1 --layers 1 --heads 1 --vocabulary 100 --context 64"
tasks="$build/bench/kann_tasks --threads 1 --samples 66 --epochs 3"

# says WHAT SENTENCE COMMAND...: the command fails, and the sentence is its last line
says() {
    local said
    said=$("${@:3}" 2>&1) && said="it succeeded: $said"
    check "$1: $(tail -n 1 <<<"$said")" [ "$(tail -n 1 <<<"$said")" = "$2" ]
}
# learns WHAT COUNT WORD COMMAND...: that number of lines have a number after the word; the last is the least
learns() {
    "${@:4}" >"$directory/said" 2>&1
    cp "$directory/said" "$directory/losses"
    check "$1 learns" awk -v word="$3" -v lines="$2" '{ for (i = 1; i < NF; i++) if ($i == word) { n++; last = $(i + 1) + 0
        if (n == 1 || last < least) least = last; if (n == 1) first = last } }
        END { exit !(n == lines && last == least && last < first) }' "$directory/losses"
}

check "gpt2_step without files" $gpt2 --steps 1
head -c $((1024 + 2 * (4 * 256 + 1))) /dev/zero >"$directory/tokens" # four steps of equal tokens
learns "gpt2_step" 4 loss $gpt2 --tokens "$directory/tokens" --steps 4
says "gpt2_step with few tokens" "--tokens has too few tokens, expected 256 per step and one more" \
    $gpt2 --tokens "$directory/tokens" --steps 5
says "gpt2_step without that file" "--tokens is none, expected a file of tokens in llm.c's format" $gpt2 --tokens none
says "gpt2_step with a short context" "--context is 63, expected a whole number of at least 64" $gpt2 --context 63
check "gpt2_step without those weights" grep -q '^--weights: .*none' <($gpt2 --weights none 2>&1)

seq 1 66 | awk '{ print $1, 3, 3 * $1 }' >"$directory/products"
head -c $((16 + 66 * 784)) /dev/zero | gzip >"$directory/train-images-idx3-ubyte.gz"
head -c $((8 + 66)) /dev/zero | gzip >"$directory/train-labels-idx1-ubyte.gz"
learns "rnn-bit" 3 cost: $tasks --task rnn-bit --data "$directory/products"
learns "mlp" 3 cost: $tasks --task mlp --data "$directory"
learns "cnn" 3 cost: $tasks --task cnn --data "$directory"
says "another task" "--task is lstm, expected mlp, cnn or rnn-bit" $tasks --task lstm
says "too few images" "--data is $directory, expected a directory whose MNIST files train-images-idx3-ubyte.gz and\
 train-labels-idx1-ubyte.gz have --samples images" $tasks --task mlp --data "$directory" --samples 67
says "too few products" "--data is $directory/products, expected --samples lines of two numbers and their product" \
    $tasks --data "$directory/products" --samples 67
says "no data" "--data is missing, expected a file of lines of two numbers and their product" $tasks

if command -v "$python" >/dev/null; then
    # A stub of KANN, whose programs print the costs that $COST names.
    mkdir -p "$directory/kann/examples"
    touch "$directory/kann/kann.c"
    printf 'examples/%%:\n\tcp stub $@\n' >"$directory/kann/Makefile"
    printf '#!/bin/sh\nfor e in 1 2; do echo "epoch: $e; cost: $COST (class error: 40.00%%)"; done\n' >"$directory/kann/stub"
    chmod +x "$directory/kann/stub"
    kann="$python bench/peers/kann.py --program $build/bench/kann_tasks --tasks rnn-bit --blas=-lnone"
    beside="$kann --kann $directory/kann --samples 66 --epochs 2 --rounds 1 --threads 1"
    check "kann.py" env COST=0.69 $beside --tolerance 3
    check "has a row of both" [ "$(grep -c '^KANN .*loss 0.69, error 40.00 %$\|^tapegrad .* 1.00 .*loss [0-9.]*, error' "$directory/said")" -eq 2 ]
    check "kann.py compares losses" grep -q "^kann.py: rnn-bit: the loss is [0-9.]*, that of KANN 9.0, expected a\
 relative difference of at most 0.3 (--tolerance)$" <(COST=9 $beside 2>&1)
    says "kann.py without KANN" "kann.py: --kann is missing, expected a checkout of KANN: git clone\
 https://github.com/attractivechaos/kann" $kann
    says "kann.py with few samples" "kann.py: --samples is 9, expected a whole number of at least 65" $kann --samples 9
    llmc="$python bench/peers/gpt2.py --program $build/bench/gpt2_step"
    says "gpt2.py with many steps" "gpt2.py: --steps is 21, expected 3 to 20: later llm.c draws a sample" $llmc --steps 21
    says "gpt2.py with another directory" "gpt2.py: --llmc: $directory/train_gpt2.c is missing, expected a checkout of\
 llm.c: git clone https://github.com/karpathy/llm.c" $llmc --llmc "$directory"
    says "gpt2.py compares losses" "-c: step 1: the loss of b is 2.5, that of a is 2.0, expected a difference of at most\
 0.1 (--tolerance)" "$python" -c 'import argparse, sys
sys.path.insert(0, "bench/peers")
import gpt2
gpt2.compare(argparse.Namespace(tolerance=0.1), {"a": [1.0, 2.0], "b": [1.05, 2.5]})'
    [ -z "${LLMC:-}" ] || check "gpt2.py" $llmc --llmc "$LLMC" --tiny --steps 3 --rounds 1
    [ -z "${KANN:-}" ] || check "kann.py by KANN" $python bench/peers/kann.py --kann "$KANN" --data "${MNIST:?}" \
        --program "$build/bench/kann_tasks" --samples 300 --epochs 3 --rounds 1
    [ -n "${LLMC:-}" ] && [ -n "${KANN:-}" ] || echo "not tested: llm.c and KANN, whose checkouts LLMC and KANN name"
else
    echo "not tested: the commands of bench/peers, without $python"
fi

report
