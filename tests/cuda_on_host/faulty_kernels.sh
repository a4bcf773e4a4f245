#!/usr/bin/env bash
# Plants faults in copies of the library's kernels; for each fault, a test program must fail.
#   faulty_kernels.sh BUILD            a few faults, in a copy of BUILD and of BUILD-sanitize
#   faulty_kernels.sh BUILD barriers   instead removes each barrier of ops/ and nn/ in turn
# Run from the repository's root, after the tests of those builds.
set -eu
build=${1:?usage: faulty_kernels.sh BUILD [barriers]}
tree=build-faulty-kernels seeds='0 1 20 3' failures=0
export DEVICE=cuda CK_FORK=no OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive

# plant BUILD FILE SED PROGRAM MAKE_OPTIONS...: SED edits the file, and the program must fail.
plant() {
    local build=$1 file=$2 script=$3 program=$4 seed
    shift 4
    rm -rf $tree && mkdir -p $tree/$build/tests
    cp -a Makefile *.mk tapegrad.h extend.h tensor autograd ops nn optim distributed ext tests $tree
    cp -a $build/{settings,tensor,autograd,ops,nn,optim,distributed,ext} $tree/$build
    cp -a $build/tests/{cuda_on_host,*.o,*.d} $tree/$build/tests
    sed -i "$script" $tree/$file
    ! cmp -s $file $tree/$file || { echo "$file: $script changes nothing" >&2; exit 1; }
    make -s -C $tree CUDA=host BUILD=$build "$@" $build/tests/$program >$tree/log 2>&1 ||
        { cat $tree/log >&2; exit 1; }
    for seed in $seeds; do
        if ! (cd $tree && TAPEGRAD_CUDA_SEED=$seed timeout 300 $build/tests/$program) >$tree/log 2>&1; then
            echo "$file: $script: $program fails with seed $seed"
            return
        fi
    done
    echo "$file: $script: $program does not find it" >&2
    failures=$((failures + 1))
}

# The program that tests a file's kernels.
program_for() {
    case $1 in
    ext/decode/*) echo test_generation ;;
    ops/*attention/softmax/* | *softmax_tiles*) echo test_softmax_attention ;;
    ext/images/*batchnorm*) echo test_batchnorm ;;
    ext/images/*) echo test_convolution ;;
    ext/*) basename -s .c "$(cut -d/ -f1,2 <<<"$1")"/tests/test_*.c ;;
    ops/*attention/*) echo test_attention ;;
    *cumulative_sum*) echo test_operations ;;
    *transpose*) echo test_layout ;;
    *linear* | *columns*) echo test_products ;;
    *sampl*) echo test_sampling ;;
    *) echo test_rows ;;
    esac
}

if [ "${2-}" = barriers ]; then
    while IFS=: read -r file line _; do
        plant "$build" "$file" "${line}s/__syncthreads()/(void)0/" "$(program_for "$file")"
    done < <(grep -rn --include='*.cu' --include='*.cuh' '__syncthreads();' ops nn ext)
else
    second=$(grep -n '__syncthreads();' ops/cuda/shared/rows.cuh | sed -n '2s/:.*//p')
    plant "$build" ops/cuda/shared/rows.cuh "${second}s/__syncthreads()/(void)0/" test_rows
    plant "$build" ops/cuda/products/linear.c "s/EPILOGUE_RELU_BIAS/EPILOGUE_BIAS/" test_products
    plant "$build" ops/products/product.c 's/result_for(gradient, input)/(Result){ gradient.data, input->type, false }/' test_products
    plant "$build" ops/cuda/attention/linear/mma_kernels.cuh 's/^ *wait_for_copies();//' test_attention
    plant "$build" ext/decode/cuda/step.cu \
        '/wait_for_previous_kernel();/{N;s/\(.*\)\n\(.*const Real residual.*\)/\2\n\1/}' test_generation
    plant "$build"-sanitize ops/cuda/layout/transpose.cu 's/i + row < p && j + lane < q/i + row < p/' test_layout \
        CC=clang CFLAGS='-O1 -g -fno-omit-frame-pointer' \
        SANITIZE='-fsanitize=address,undefined -fno-sanitize-recover=all'
fi
rm -rf $tree
[ $failures -eq 0 ]
