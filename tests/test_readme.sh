#!/usr/bin/env bash
# Compiles every C block of README.md, CONTRIBUTING.md and docs/, runs those that are programs, and
# checks that the pages' links, the paths and the functions that they name exist.
. "$(dirname "$0")/check.sh"
export TAPEGRAD_CUDA_ON_HOST_DEVICES=0 # the emulation is slow, and not what is tested here

# Writes each block between ```c and ``` into a file of its own.
for page in *.md docs/*.md; do
    awk -v prefix="$directory/$(basename "$page" .md)" '
        /^```c$/ { inside = 1; file = sprintf("%s-%02d.c", prefix, ++n); next }
        /^```$/ { inside = 0 }
        inside { print > file }' "$page"
done

# The two programs of tapegrad.h's tutorial.
awk -v prefix="$directory/tapegrad" '
    /^ \*     [^ ]/ || (/^ \*     / && inside) || (/^ \*$/ && inside) { if (!n) n = 1; inside = 1; print substr($0, 8) > sprintf("%s-%02d.c", prefix, n); next }
    /^#ifndef/ { exit }
    inside && n == 1 { n = 2 }
    { inside = 0 }' tapegrad.h

for snippet in "$directory"/*.c; do
    count=$((count + 1))
    grep -q '<tapegrad.h>' "$snippet" || sed -i '1i #include <tapegrad.h>' "$snippet"
    program=${snippet%.c}
    flags="-std=gnu11 -Wall -Wextra -Wpedantic -Werror -Wno-unused-function -fopenmp -I."
    [ "${REAL:-float}" = float ] || flags+=" -DTAPEGRAD_DOUBLE"
    [ -n "$(nm "$build/libtapegrad.a" 2>/dev/null | grep -m1 __asan)" ] && flags+=" -fsanitize=address,undefined"
    if grep -q 'int main' "$snippet"; then
        "${CC:-gcc}" $flags "$snippet" "$build/libtapegrad.a" ${LIBS:--ldnnl -lm} -o "$program" ||
            { fail "$(basename "$snippet") does not compile"; continue; }
        (cd "$directory" && "$program") >"$program.out" 2>&1 || fail "$(basename "$snippet") fails: $(tail -n 3 "$program.out")"
    else
        "${CC:-gcc}" $flags -c "$snippet" -o "$program.o" || fail "$(basename "$snippet") does not compile"
    fi
done

# The tutorial's network learns.
count=$((count + 1))
awk '/loss/ { loss = $4 } END { exit !(NR > 0 && loss < 0.001) }' "$directory/tapegrad-01.out" ||
    fail "tapegrad.h's program ends at $(tail -n 1 "$directory/tapegrad-01.out"), expected a loss below 0.001"

# The README's program is exactly the example, and learns.
count=$((count + 2))
first=$(grep -l 'int main' "$directory"/README-*.c | head -n 1)
cmp examples/two_moons.c "$first" || fail "README.md's program is not examples/two_moons.c"
awk '/loss/ { loss = $4 } END { exit !(loss > 0 && loss < 0.05) }' "${first%.c}.out" ||
    fail "README.md's program ends at $(tail -n 1 "${first%.c}.out"), expected a loss below 0.05"

# README.md stays short.
count=$((count + 1))
[ "$(wc -l <README.md)" -le 170 ] || fail "README.md has $(wc -l <README.md) lines, expected at most 170"
count=$((count + 1))
wide=$(awk 'length($0) > 100 { print FNR }' README.md)
[ -z "$wide" ] || fail "README.md: lines of more than 100 columns: $wide"

# names PAGE...: reports paths and functions that do not exist. A path is a word in `code` that begins
# with a directory of the tree, or a word of two parts that ends as a source; it starts at the root, at
# the page's directory or at a directory that its line names. In the README of a directory a file's bare
# name is a path too. A function is in a header. Words with capitals are templates.
names() {
    perl -ne '
        BEGIN {
            undef $/;
            open my $in, "cat \$(find . -name \"*.h\" -not -path \"./build*\") |" or die;
            $headers = <$in>;
        }
        ($folder = $ARGV) =~ s,[^/]*$,,;
        s/^```.*?^```$//gsm;
        for my $line (split /\n/) {
            my @words = map { split /[^\w.\/*-]+/ } $line =~ /`([^`]*)`/g;
            push @words, $line =~ /(?<![\w\/.(-])\w+(?:\/\w+)+\.(?:c|h|cu|cuh)\b/g;
            my @bases = ("", $folder, map { "$folder$_/" } grep { -d "$folder$_" } @words);
            for my $word (grep { !/[A-Z]{3}|\.\.\./ or /README/ } @words) {
                my $path = $word =~ m,^(?:\.\./)*(?:tensor|autograd|ops|nn|optim|ext|distributed|tests|bench|examples|docs|cpu|cuda)/.,;
                my $bare = $folder =~ /^(?:ops|nn|ext|tests)/ && $word =~ /^\w[\w*]*\.(?:c|h|cu|cuh|cpp|sh)$/;
                print "$ARGV names $word, which does not exist\n"
                    if ($path or $bare) && !grep { -e } map { glob "$_$word" } @bases;
                print "$ARGV names $word, which no header declares\n"
                    if $word =~ /^(?:op|tape|nn|params|optim|dist|device|tensor|random|tapegrad)_\w+$/ && $headers !~ /\b$word\b/;
            }
        }' "$@"
}
# The changelog and the pages of measurements name what existed on their day; tests/book.sh has the book's links, and
# sources of man/ have none.
pages() { find "$1" -name '*.md' -not -path "$1/build*" -not -path "$1/packages/*" -not -path "$1/man/*" -not -path '*/book/*/page.md' -not -path '*/book/index.md'; }
count=$((count + 1))
found=$(names $(pages . | grep -v '^./CHANGELOG.md\|^./bench/results/cpu-' | sed 's,^./,,'))
[ -z "$found" ] || fail "$found"

# Each row of the glossary names its functions' files: one of them has the word.
count=$((count + 1))
found=$(grep '^| ' docs/glossary.md | while IFS='|' read -r _ term _ code files _; do
    files=$(grep -oE '[a-z_0-9]+(/[a-z_0-9]+)+\.(c|h|cu|cuh)' <<<"$files") || continue
    for word in $(grep -oE '`[a-zA-Z_]+`' <<<"$code" | tr -d '`'); do
        grep -qw "$word" $files || echo "docs/glossary.md:$term: $word is not in" $files
    done
done)
[ -z "$found" ] || fail "$found"

# anchors PAGE: of its headings: lower case, spaces become hyphens, other punctuation goes.
anchors() {
    grep '^#' "$1" | sed -E 's/^#+ //; s/\[([^]]*)\]\([^)]*\)/\1/g; s/[^[:alnum:]_ -]//g; s/ /-/g' | tr '[:upper:]' '[:lower:]'
}
# Every relative link leads to a file and a heading, and every page has a link to it.
echo "$PWD/README.md" >"$directory/linked"
while IFS=: read -r page link; do
    count=$((count + 1))
    target="$(dirname "$page")/${link%%#*}"
    [ "${link%%#*}" ] || target=$page
    realpath -qe "$target" >>"$directory/linked" || fail "$page links to $link, which does not exist"
    [ "$link" = "${link#*#}" ] || anchors "$target" | grep -qxFe "${link#*#}" ||
        fail "$page links to $link, which has no such heading"
done < <(grep -HoE '\]\([^)]+' $(pages .) | sed 's/\](//' | grep -vE ':https?:')

count=$((count + 1))
unlinked=$(pages "$PWD" | grep -vxFf "$directory/linked")
[ -z "$unlinked" ] || fail "no page links to $unlinked"

[ "$count" -ge 2 ] || fail "no snippets were found"
report
