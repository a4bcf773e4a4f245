#!/usr/bin/env bash
# Training runs whose allocations and file operations fail, and that are killed.
#   run.sh BUILD [COUNT [SEED]]     COUNT: runs per part
# After each run the checkpoint is the old or the new one, bit for bit; a run that reports success
# has written the new one; one that fails says why and is not killed by a signal. A run that
# continues after kill -9 ends with the weights of the run that was never killed.
# Not promised: memory exhausted within oneDNN's products or in the OpenMP and C runtimes ends the
# process in their own way; these runs are counted, and leave the checkpoint whole too.
set -u
build=${1:?usage: run.sh BUILD [COUNT [SEED]]} count=${2:-60} failures=0 foreign=0
RANDOM=${3:-1}
directory=$(mktemp -d) && trap 'rm -rf "$directory"' EXIT
shim=$directory/shim.so file=$directory/run.safetensors
export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
"${CC:-gcc}" -O1 -shared -fPIC tests/faults/shim.c -o "$shim" -ldl || exit 1
task="$build/programs/copy_task --quiet --threads 2"
model="--length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 8 --dropout 0.1"
next="$task --resume $file --steps 4 --save $file"

fail() {
    failures=$((failures + 1))
    echo "$*: $(tail -n 2 "$directory/log")"
}

$task $model --steps 2 --save "$file" >"$directory/log" 2>&1 || { fail "the first run"; exit 1; }
cp "$file" "$directory/old"
$next >"$directory/log" 2>&1 || { fail "the second run"; exit 1; }
cp "$file" "$directory/new"

# calls FUNCTION: how often a run calls it
calls() {
    cp "$directory/old" "$file"
    rm -f "$directory/count"
    FAULT=$1 FAULT_COUNT=$directory/count LD_PRELOAD=$shim $next >"$directory/log" 2>&1 &&
        cmp -s "$file" "$directory/new" && cat "$directory/count"
}

# judge WHAT STATUS [may_be_foreign]: of a run that was to save the new checkpoint over the old one
judge() {
    local what=$1 status=$2
    if cmp -s "$file" "$directory/new"; then :
    elif ! cmp -s "$file" "$directory/old"; then fail "$what: the checkpoint is neither old nor new"
    elif [ $status -eq 0 ]; then fail "$what: status 0, but the checkpoint is the old one"
    fi
    if grep -q 'std::bad_alloc\|^libgcc_s\|^libgomp: \|[sS]egmentation' "$directory/log" || [ $status -eq 139 ]; then
        foreign=$((foreign + 1))
        [ "${3-}" ] || fail "$what: ends with status $status"
    elif [ $status -ge 124 ]; then fail "$what: ends with status $status"
    elif [ $status -ne 0 ] && ! grep -q '^copy_task: \|exhausted\|cannot\|failed\|error\|not' "$directory/log"; then
        fail "$what: status $status without a reason"
    fi
    if ls "$file".tmp.* >/dev/null 2>&1; then
        [ "${3-}" ] && [ $status -ge 128 ] || fail "$what: a temporary file is left"
        rm -f "$file".tmp.*
    fi
}

# faulty FUNCTION N ERRNO: a run in which call N fails
faulty() {
    local what="$1 $2 fails with errno $3" status=0
    cp "$directory/old" "$file"
    # A shell of its own, so that its report of a signal goes to the log.
    (timeout 60 env FAULT="$1" FAULT_AT="$2" FAULT_ERRNO="$3" LD_PRELOAD="$shim" $next; exit $?) \
        >"$directory/log" 2>&1 || status=$?
    judge "$what" $status "$([ "$1" = malloc ] && echo may_be_foreign)"
}

# Allocations: evenly spread over all of a run's.
total=$(calls malloc)
[ "${total:-0}" -gt 0 ] || { fail "a run that counts its allocations" && exit 1; }
for ((i = 0; i < count; i++)); do
    faulty malloc $((1 + (i * (total - 1) + RANDOM % 97) / count)) 12
done
echo "allocations: $count of $total failed, $foreign of them in oneDNN or a runtime"

# zlib and libpng: every allocation of theirs in a run of images that reads compressed images and
# draws a picture.
zeros() { printf '\0\0\10\3\0\0\0\10\0\0\0\6\0\0\0\5' && head -c 240 /dev/zero; }
for part in train t10k; do zeros | gzip >"$directory/$part-images-idx3-ubyte.gz"; done
images="$build/programs/images" picture="$directory/picture.png" pictured=0
$images train --data "$directory" --rows 6 --columns 5 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 \
    --batch 4 --steps 1 --quiet --save "$directory/model.safetensors" >"$directory/log" 2>&1 || fail "images train"
draw="$images sample --load $directory/model.safetensors --data $directory --count 1 --threads 1 --plot $picture"
export FAULT=malloc FAULT_COUNT=$directory/count
for FAULT_LIBRARY in libz.so libpng; do
    export FAULT_LIBRARY
    LD_PRELOAD=$shim $draw >"$directory/log" 2>&1 || fail "images sample"
    total=$(cat "$directory/count")
    for ((n = 1; n <= total; n++)); do
        status=0
        rm -f "$picture"
        (timeout 60 env FAULT_AT=$n LD_PRELOAD="$shim" $draw; exit $?) >"$directory/log" 2>&1 || status=$?
        if [ $status -ge 124 ] || [ $status -eq 0 -a ! -s "$picture" ] || [ $status -ne 0 -a -e "$picture" ]; then
            fail "allocation $n of $FAULT_LIBRARY: status $status"
        fi
        [ $status -eq 0 ] || grep -q 'exhausted\|cannot\|memory' "$directory/log" || fail "allocation $n of $FAULT_LIBRARY: no reason"
    done
    pictured=$((pictured + total))
done
unset FAULT FAULT_COUNT FAULT_LIBRARY
[ $pictured -ge 10 ] || fail "images: zlib and libpng allocated $pictured times only"
echo "allocations of zlib and libpng: all $pictured failed"

# Address space: limits in steps of 2 MB, from one that the program's start needs to one that suffices.
limits=0 limit=0 foreign=0
for ((limit = 10; limit < 2000; limit += 2)); do
    (ulimit -v $((limit * 1024)) && "$build/programs/copy_task" --help) >"$directory/log" 2>&1 && break
done
for (( ; limit < 2000; limit += 2)); do
    cp "$directory/old" "$file"
    status=0
    (ulimit -v $((limit * 1024)) && timeout 60 $next; exit $?) >"$directory/log" 2>&1 || status=$?
    limits=$((limits + 1))
    judge "address space of $limit MB" $status may_be_foreign
    [ $status -eq 0 ] && break
done
echo "address space: $limits limits up to $limit MB, $foreign ended in oneDNN or a runtime"

# File operations: each of the last calls, of which saving is a part, with EIO, ENOSPC and EINTR.
files=0
for function in write pread fflush fsync rename open close; do
    total=$(calls $function)
    [ "${total:-0}" -gt 0 ] || fail "no call of $function is seen"
    for ((n = total; n > 0 && n > total - 3 && files < 8 * count; n--)); do
        for errno in 5 28 4; do
            faulty $function $n $errno
            files=$((files + 1))
        done
    done
done
echo "file operations: $files failed"

# Killed runs, until one ends by itself; at any time the checkpoint continues.
rm -f "$file"
long="--steps 80 --save-every 2 --save $file"
$task $model $long >"$directory/log" 2>&1 || fail "the whole run"
mv "$file" "$directory/whole"
kills=0 runs=0 resumed=0
while [ $kills -lt "$count" ] && [ $runs -lt $((4 * count)) ]; do
    start="$model"
    [ -e "$file" ] && start="--resume $file" && resumed=$((resumed + 1))
    # shellcheck disable=SC2086
    $task $start $long >"$directory/log" 2>&1 &
    child=$!
    for ((i = 0; i < 500; i++)); do [ -e "$file" ] || ! kill -0 $child 2>/dev/null || sleep 0.01; done
    sleep 0.0$((RANDOM % 9))$((RANDOM % 10))
    kill -9 $child 2>/dev/null && kills=$((kills + 1))
    status=0
    wait $child 2>/dev/null || status=$?
    runs=$((runs + 1))
    if [ $status -eq 0 ]; then
        cmp -s "$file" "$directory/whole" || fail "a run that was killed before ends with other weights"
        rm -f "$file"
    elif [ $status -ne 137 ]; then
        fail "a run after a kill ends with status $status"
        rm -f "$file"
    fi
done
if [ -e "$file" ]; then
    $task --resume "$file" $long >"$directory/log" 2>&1 && cmp -s "$file" "$directory/whole" ||
        fail "the last run ends with other weights"
fi
[ $resumed -gt 0 ] || fail "no killed run had saved"
echo "killed runs: $kills, $resumed resumed; temporary files left: $(ls "$file".tmp.* 2>/dev/null | wc -l)"

# Three processes that save to one path, killed together; in memory, where they save more often.
memory=$(mktemp -d -p /dev/shm 2>/dev/null || echo "$directory")
"$build/tests/faults/savers" "$memory/shared" $((count * 10 / 3)) >"$directory/log" 2>&1 || fail "savers"
tail -n 1 "$directory/log"
[ "$memory" = "$directory" ] || rm -r "$memory"
[ $failures -eq 0 ]
