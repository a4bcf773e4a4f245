#!/usr/bin/env bash
# Products in bf16 with the processor's instructions limited by oneDNN's environment variable: they are
# right under each limit, and --precision auto chooses bf16 exactly where oneDNN has instructions for it.
. "$(dirname "$0")/check.sh"
export DEVICE=cpu

# train PRECISION: writes the run's errors to PRECISION.err, oneDNN's calls to PRECISION.calls and the
# loss of each step to PRECISION
train() {
    ONEDNN_VERBOSE=1 "$build/programs/copy_task" --length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 \
        --feed-forward 16 --batch 8 --threads 2 --drop-at 0 --steps 3 --device cpu --precision "$1" \
        >"$directory/out" 2>"$directory/$1.err" || return
    grep 'exec,cpu,matmul,' "$directory/out" >"$directory/$1.calls"
    awk '$1 == "step" { print $4 }' "$directory/out" >"$directory/$1" && [ -s "$directory/$1" ]
}

# The losses of two files differ by at most 0.01: of 1.4, less than two roundings to bf16.
close() {
    paste "$directory/$1" "$directory/$2" | awk '{ d = $1 - $2; if (d > 0.01 || d < -0.01) exit 1 }'
}

if ! grep -q dnnl <<<"${LIBS:--ldnnl}"; then
    echo "not tested: oneDNN's instructions, in a build without oneDNN"
    exit
fi
double=$(nm "$build/libtapegrad.a" | grep -m 1 tape_new_double)
for limit in $([ "$(uname -m)" = x86_64 ] && echo AVX2 AVX512_CORE AVX512_CORE_BF16 AVX512_CORE_AMX); do
    export ONEDNN_MAX_CPU_ISA=$limit DNNL_MAX_CPU_ISA=$limit
    precision=float32 calls=0
    case $limit,$double in
        *_BF16, | *_AMX,) grep -q -m 1 avx512_bf16 /proc/cpuinfo && precision=bf16 calls=1 ;;
    esac
    check "$limit: it trains" train auto
    check "$limit: auto is $precision" grep -qx "precision: $precision" "$directory/auto.err"
    check "$limit: it trains in $precision" train $precision
    check "$limit: auto is $precision, bit for bit" cmp "$directory/auto" "$directory/$precision"
    [ "$double" ] && continue
    check "$limit: it trains in bf16" train bf16
    check "$limit: it trains in float32" train float32
    check "$limit: bf16 is close to float32" close bf16 float32
    check "$limit: oneDNN computes products in bf16: $calls" \
        [ "$(grep -c -m 1 src_bf16 "$directory/bf16.calls")" -eq $calls ]
    check "$limit: each of these products has its instructions" \
        [ "$(grep -c -v 'matmul,[^,]*\(bf16\|amx\)' "$directory/bf16.calls")" -eq 0 ]
    TEST=against_loops_in_double check "$limit: products" "$build/tests/test_products_bf16"
    TEST=the_processor_decides check "$limit: the choice" "$build/tests/test_products_bf16"
    TEST=bf16_inputs check "$limit: operations" "$build/tests/test_operations"
    TEST=bf16_of_real_inputs check "$limit: operations of real inputs" "$build/tests/test_operations"
done
[ "$count" -gt 0 ] || exit 0
report
