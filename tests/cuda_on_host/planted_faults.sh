#!/bin/sh
# Tests the emulation, and that it finds every fault planted in faults/planted.cu. Builds in the
# directory $1/planted_faults; run from the repository's root.
set -eu
build=${1:?directory to build in}/planted_faults
here=tests/cuda_on_host
seeds="0 1 2 3 4 5 6 7"
flags="-x c++ -std=gnu++17 -pthread -Wall -Wextra -Wshadow -Werror -DTAPEGRAD_CUDA_ON_HOST
       -I$here/include -I$here/faults -g"
failures=0
export TAPEGRAD_CUDA_EARLY=1

fail() {
    echo "planted_faults: $*" >&2
    failures=$((failures + 1))
}

# compile FLAVOUR OPTIONS...: the emulation once, then each program
compile() {
    pids=
    flavour=$build/$1
    shift
    rm -rf "$flavour" && mkdir -p "$flavour"
    for source in "$here"/*.cpp; do
        clang++ $flags "$@" -c "$source" -o "$flavour/$(basename "$source").o" &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || exit 1; done
    pids=
    for program in emulation products planted; do
        clang++ $flags "$@" "$here/faults/$program.cu" -x none "$flavour"/*.o \
            -o "$flavour/$program" &
        pids="$pids $!"
    done
    for pid in $pids; do wait "$pid" || exit 1; done
}

# runs FLAVOUR PROGRAM [FAULT]: returns the program's exit status
runs() {
    status=0
    "$build/$1/$2" ${3-} >"$build/output" 2>&1 || status=$?
    return $status
}

# right FLAVOUR PROGRAM: the program succeeds with every seed
right() {
    for seed in $seeds; do
        TAPEGRAD_CUDA_SEED=$seed runs "$@" ||
            { fail "$* fails with seed $seed:"; cat "$build/output" >&2; }
    done
}

# wrong FAULT: some seed gives a wrong result
wrong() {
    found=
    for seed in $seeds; do
        status=0
        TAPEGRAD_CUDA_SEED=$seed runs plain planted "$1" || status=$?
        [ $status -eq 0 ] || found="$found $seed"
        [ $status -le 1 ] || { fail "$1 ends with $status:"; cat "$build/output" >&2; }
    done
    if [ "$found" ]; then echo "$1: wrong with seeds$found"; else fail "$1 is not found"; fi
}

# stops FLAVOUR FAULT TEXT: the fault stops the program, with seed 0, and the output has the text
stops() {
    if (runs "$1" planted "$2") 2>/dev/null || ! grep -q "$3" "$build/output"; then
        fail "$2 is not found ($1):"
        cat "$build/output" >&2
    else
        echo "$2: $(grep -m 1 "$3" "$build/output" | cut -c 1-160)"
    fi
}

compile plain -O2
compile sanitized -O1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all

for flavour in plain sanitized; do
    for program in emulation products planted; do
        right $flavour $program
    done
    TAPEGRAD_CUDA_ON_HOST_DEVICES=0 runs $flavour emulation no-device ||
        { fail "emulation without devices ($flavour):"; cat "$build/output" >&2; }
done
wrong no-barrier-before-writing
wrong no-barrier-before-reading
wrong no-syncwarp
wrong no-barrier-before-ldmatrix
wrong no-wait-for-copies
wrong no-barrier-after-copies
wrong reads-before-waiting
stops plain leaves-early "has left the kernel"
stops plain divergent-barriers "waits in __syncthreads"
stops plain incomplete-warp "has left the kernel while"
stops plain incomplete-mma "has left the kernel while"
stops plain unaligned-ldmatrix "not aligned to 16 bytes"
stops plain unaligned-copy "not aligned to its 16 bytes"
stops plain copies-from-outside "outside of the device's memory"
stops plain writes-into-copy "has been written before the copy was there"
stops plain leaves-with-copies "without waiting for its copy"
stops plain leaves-without-waiting "without wait_for_previous_kernel"
stops plain writes-before-waiting "before wait_for_previous_kernel"
stops plain host-pointer "not memory of a device"
stops plain collective-without-wait "its stream does not wait for work on another stream"
stops plain work-without-wait "does not wait for the collective operation on another stream"
stops plain overlaps-in-a-group "it writes memory of another call of its group"
stops plain leaves-a-group-open "has not ended a group"
stops plain reduces-from-host "ncclReduce: the send buffer is not memory of a device"
stops plain use-after-free "not memory of a device"
stops sanitized past-the-end "AddressSanitizer: heap-buffer-overflow"
stops sanitized past-shared-memory "AddressSanitizer: global-buffer-overflow"
stops sanitized past-dynamic-shared-memory "AddressSanitizer: heap-buffer-overflow"
[ $failures -eq 0 ]
