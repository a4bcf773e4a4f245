#!/usr/bin/env bash
# bench/attention --goals at small lengths: every row is present and has correct results.
. "$(dirname "$0")/check.sh"
device=${DEVICE:-cpu}
records=$directory/goals.json

# values NAME: the value of NAME in every record.
values() { grep -o "\"$1\": [^,]*" "$records" | cut -d ' ' -f 2; }

type=float32 error=2e-5
if [ "$device" != cpu ] && ! nm "$build/libtapegrad.a" | grep -q -m 1 tape_new_double; then
    type=bf16 error=1e-2 # the faster of both on the emulation
fi
"$build/bench/attention" --goals --quick --device "$device" --precision $type --json "$records" >"$directory/table"
check "it runs" [ $? -eq 0 ]
check "quick says that it is" grep -q '^quick: not comparable with the goals$' "$directory/table"
check "quick has no verdict" [ "$(grep -c ' met\| missed' "$directory/table")" -eq 0 ]
check "two passes of six shapes" [ "$(values pass | sort | uniq -c | tr -s ' \n' ' ')" = \
    ' 6 "forward" 6 "forward+backward" ' ]
check "stored as $type" [ "$(values type | sort -u)" = "\"$type\"" ]
check "errors are at most $error" awk -v most=$error '!($1 <= most) { print; exit 1 }' <(values error)
[ "$device" = cpu ] || check "and are not the CPU's own" awk '$1 == 0 { exit 1 }' <(values error)
check "the goals of the last shape" [ "$(values goal_us | tail -n 2 | tr '\n' ' ')" = \
    "$([ $type = bf16 ] && echo '260 900' || echo '480 1900') " ]
check "a precision without goals" [ "$("$build/bench/attention" --goals --precision tf32 2>&1)" = \
    "--goals: --precision is tf32, expected bf16 or float32" ]

report
