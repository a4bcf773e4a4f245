#!/usr/bin/env bash
# Wall seconds of a program on this machine as it is and with LOAD busy loops per processor, by the
# settings of OpenMP's threads. The first row of each is what a user meets who sets nothing.
#   bench/busy.sh [COMMAND...]     build/examples/first_program by default
# RUNS=3 runs of each, in turns; LOAD=4; a program that takes over LIMIT=60 seconds counts as LIMIT.
set -eu
cd "$(dirname "$0")/.."
runs=${RUNS:-3} load=${LOAD:-4} limit=${LIMIT:-60}
[ $# -gt 0 ] || set -- build/examples/first_program
settings=(default OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive "OMP_PROC_BIND=true GOMP_SPINCOUNT=1000")
loops=()
times=$(mktemp)
stop() {
    [ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true
    rm -f "$times"
}
trap stop EXIT

seconds() { # SETTING COMMAND...: prints the wall seconds of one run
    local begin=$EPOCHREALTIME setting=$1 status=0
    shift
    # shellcheck disable=SC2086
    env -u OMP_NUM_THREADS -u OMP_WAIT_POLICY -u OMP_PROC_BIND -u GOMP_SPINCOUNT \
        $([ "$setting" = default ] || echo $setting) timeout "$limit" "$@" >/dev/null || status=$?
    [ $status -eq 0 ] || [ $status -eq 124 ] || exit $status
    awk "BEGIN { printf \"%.3f\\n\", $EPOCHREALTIME - $begin }"
}

measure() { # TITLE COMMAND...
    local title=$1 best=0 i run
    shift
    : >"$times"
    for ((run = 0; run < runs; run++)); do
        for i in "${!settings[@]}"; do
            echo "$i $(seconds "${settings[i]}" "$@")" >>"$times"
        done
    done
    printf '\n%s: median of %d runs, seconds; relative to the best setting\n' "$title" "$runs"
    median() { awk -v i="$1" '$1 == i { print $2 }' "$times" | sort -n | sed -n "$(((runs + 1) / 2))p"; }
    best=$(for i in "${!settings[@]}"; do median "$i"; done | sort -n | head -n 1)
    for i in "${!settings[@]}"; do
        printf '%-40s %8.3f %6.2f\n' "${settings[i]}" "$(median "$i")" \
            "$(awk "BEGIN { print $(median "$i") / $best }")"
    done
}

processors=$(nproc)
echo "$processors processors: $*"
measure "idle" "$@"
for ((i = 0; i < load * processors; i++)); do
    (trap - EXIT; while :; do :; done) &
    loops+=($!)
done
measure "busy, $load loops per processor" "$@"
