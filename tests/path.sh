#!/usr/bin/env bash
# The lines of today of README's reading path: "[file](path)" in its list, followed by "`A` to `B`" or "`A`" where
# not all of it is read: from the definition of A to the end of B's. Fails where a name has no definition, or the
# path is longer than 2180 lines. (make path)
set -eu
cd "$(dirname "$0")/.."
total=0

# lines_of FILE A B: "FIRST LAST", by definitions that begin in the first column
lines_of() {
    awk -v a="$2" -v b="$3" '
        function defines(name) { return /^[A-Za-z#]/ && match($0, "(^|[^A-Za-z0-9_])" name "([^A-Za-z0-9_]|$)") && !/^#include/ }
        /^\/\*/ { comment = NR }
        !first && defines(a) && (!/;$/ || /^enum/) { first = comment && ended == NR - 1 ? comment : NR }
        /\*\/$/ { ended = NR }
        first && !inside && defines(b) { inside = 1; if (/;$/) last = NR }
        inside && !last && (/^#define/ || macro) { macro = /\\$/; if (!macro) last = NR }
        inside && !last && /^}/ { last = NR }
        END { if (!first || !last) exit 1; print first, last }' "$1"
}

while read -r item; do
    file=$(sed -E 's/^\(([^)]*)\).*/\1/' <<<"$item")
    names=($(grep -o '`[^`]*`' <<<"$item" | tr -d '`' || true))
    lines="1 $(wc -l <"$file")"
    if [ ${#names[@]} -gt 0 ]; then
        lines=$(lines_of "$file" "${names[0]}" "${names[-1]}") || { echo "README.md: $file has no ${names[*]}" >&2 && exit 1; }
    fi
    set -- $lines
    total=$((total + $2 - $1 + 1))
    printf '%-44s %4d lines  %s\n' "$file:$1-$2" $(($2 - $1 + 1)) "${names[*]}"
done < <(sed -n '/^## Reading/,/^Then /p' README.md | sed -n '/^1\./,/^$/p' | tr '\n' ' ' | sed 's/\]/\n/g' | grep '^(')
echo "reading path: $total lines, at most 2180"
[ "$total" -le 2180 ]
