#!/usr/bin/env bash
# Fuzzes every reader for SECONDS (12 each); an input that fails stays in BUILD/fuzz.
#   run.sh BUILD [SECONDS]
set -u
build=${1:?usage: run.sh BUILD [SECONDS]} seconds=${2:-12} failures=0
export OMP_NUM_THREADS=1
for reader in file checkpoint state idx cifar10 vocabulary options; do
    export FUZZ=$reader FUZZ_SEEDS=$build/fuzz/$reader
    rm -rf "$FUZZ_SEEDS" && mkdir -p "$FUZZ_SEEDS"
    leaks=1 # a program may end at a bad option without freeing what it has
    [ $reader = options ] && leaks=0
    ASAN_OPTIONS=detect_leaks=$leaks "$build/tests/fuzz/fuzz" "$FUZZ_SEEDS" -max_total_time="$seconds" -max_len=8192 -timeout=20 \
        -print_final_stats=1 -artifact_prefix="$build/fuzz/$reader-" -close_fd_mask=3 \
        >"$build/fuzz/$reader.log" 2>&1
    status=$?
    echo "fuzz $reader: $(sed -n 's/stat::number_of_executed_units: *//p' "$build/fuzz/$reader.log" | tail -n 1) inputs"
    if [ $status -ne 0 ]; then
        failures=$((failures + 1))
        tail -n 40 "$build/fuzz/$reader.log"
    fi
done
[ $failures -eq 0 ]
