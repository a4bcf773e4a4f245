#!/usr/bin/env bash
# What programs rely on while the SONAME stays: tests/exported.txt, the names that libtapegrad.so exports, and
# tests/declared.txt, what tapegrad.h declares, then the functions and types that extend.h adds.
#   tests/test_exported.sh           reports what is promised and missing, and what is new and not listed
#   tests/test_exported.sh --write   adds what is new; once the SONAME is another, writes both lists as the tree is
# A line is removed or changed by hand: a decision, docs/stability.md.
. "$(dirname "$0")/check.sh"
export LC_ALL=C
cd "$(dirname "$0")/.." || exit 2
shared=$build/libtapegrad.so.$(sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
[ -e "$shared" ] || { echo "$shared does not exist: make library writes it" >&2 && exit 2; }
soname=$(objdump -p "$shared" | awk '$1 == "SONAME" { print $2 }')

# NCCL's names are exported where it is emulated; in double some names have an ending.
exported() { nm -D --defined-only "$shared" | awk '$3 !~ /^([_.]|nccl[A-Z])/ { sub(/_double$/, "", $3); print $3 }' | sort; }
# functions HEADER NAMES [static]: prototypes, by the types of parameters, of the functions that NAMES lists, and of
# inline ones if asked
functions() {
    gcc -std=gnu11 -fopenmp -I. -fsyntax-only -aux-info "$directory/functions" -x c "$1" &&
        awk -v static="${3:-none}" 'NR == FNR { listed[$1] = 1; next }
            $2 !~ /^[/<]/ && match($0, /[a-z_0-9]+ \(/) && ($4 == static || substr($0, RSTART, RLENGTH - 2) in listed) {
                sub(/^[^/]*[/].*[*][/] (extern )?/, ""); sub(/;.*/, ""); sub(/ \(/, "("); print
            }' "$2" "$directory/functions"
}
# text HEADER: it and the headers that it includes, but for those of the system, after the preprocessor
text() { gcc -std=gnu11 -fopenmp -I. -E -dD -x c "$1" | awk '/^# [0-9]+ "/ { own = $3 !~ /^"[\/<]/; next } own'; }
macros() { text "$1" | sed -nE '/_H $|TAPEGRAD_VERSION/d; s/^(#define [A-Za-z_0-9]+(\([^)]*\))?).*/\1/p'; }
# types HEADER: typedefs, and each member of a struct or enumeration with its index, on which its place depends
types() {
    text "$1" | grep -v '^#' | perl -0777 -ne '
        s/\s+/ /g;
        my $block = qr/(?<block>\{(?:[^{}]++|(?&block))*\})/;
        s/\) ?$block/);/g; # of inline functions
        while (/ ?(?<head>[^;{}]*)(?:$block ?(?<name>\w*))?;/g) {
            my ($head, $name, $body) = @+{"head", "name", "block"};
            print "$head\n" if !$body && $head =~ /^typedef/;
            next if !$body;
            my ($kind, $tag) = $head =~ /(struct|union|enum) ?(\w*)/;
            my ($end, $index) = ($kind eq "enum" ? "," : ";", 0);
            $body = substr $body, 1, -1;
            while ($body =~ /(?<member>(?:[^$end\{\}]|$block)+)/g) {
                my $member = $+{member} =~ s/^ | $//gr;
                print $name || $tag || $kind, "[", $index++, "] $member\n" if $member ne "";
            }
        }'
}

# compare LIST FILE: a sentence for each line of the list that the file lacks, and for what is new. Returns 2 if something
# is gone or moved, 1 if all is new.
compare() {
    awk -v list="$1" -v soname="$soname" '
        function of(line) { return line ~ /^[A-Za-z]+\[/ ? substr(line, 1, index(line, "[") - 1) : "" }
        BEGIN { keep = "; only another SONAME, of a new 0.Y in tensor/tensor.h, changes it, with a line in CHANGELOG.md" }
        /^# / || /^$/ { next }
        NR == FNR { listed[$0] = 1; order[++count] = $0; known[of($0)] = 1; next }
        { found[$0] = 1 }
        !($0 in listed) { news[++added] = $0 }
        END {
            for (i = 1; i <= added; i++) {
                name = of(news[i])
                if (name != "" && name != "enum" && name in known && news[i] !~ /\] [A-Za-z_0-9]+( = .*)?$/ && (status = 2))
                    print news[i] ": it changes the layout of a struct that " soname " promises (" list ")" keep
                else
                    print news[i] ": not in " list ", which tests/test_exported.sh --write adds"
            }
            for (i = 1; i <= count; i++)
                if (!(order[i] in found) && (status = 2))
                    print order[i] ": " soname " promises it (" list ") and lacks it" keep
            exit status ? status : added > 0
        }' "$1" "$2"
}

names=$directory/exported.txt
exported >"$names"
{ functions tapegrad.h "$names" static && macros tapegrad.h && types tapegrad.h; } >"$directory/declared.txt" &&
    { functions extend.h "$names" && types extend.h; } | grep -vxFf "$directory/declared.txt" >"$directory/extend.txt" &&
    { echo && echo '# extend.h' && cat "$directory/extend.txt"; } >>"$directory/declared.txt" || exit

of_list() { [ "$(head -n 1 "tests/$1")" = "# $soname" ]; }
if [ "${1:-}" = --write ]; then
    for list in exported.txt declared.txt; do
        if of_list $list && ! compare tests/$list "$directory/$list" >"$directory/said" && grep -v -- --write "$directory/said"; then
            exit 1
        fi
        { echo "# $soname" && echo '# tests/test_exported.sh compares and writes it; docs/stability.md: when a line may change.' &&
            cat "$directory/$list"; } >"$directory/new" && cp "$directory/new" tests/$list
    done
    exit
fi

for list in exported.txt declared.txt; do
    check "tests/$list is of another SONAME than $soname: tests/test_exported.sh --write" of_list $list
    check "tests/$list" compare tests/$list "$directory/$list"
done

# The comparison finds what it should.
finds() { # LIST CHANGE SENTENCE STATUS: what sed makes of the list
    sed "$2" "tests/$1" >"$directory/changed"
    compare "$directory/changed" "$directory/$1" >"$directory/sentences"
    [ $? -eq "$4" ] && grep -F "$3" "$directory/sentences"
}
check "a name that is gone" finds exported.txt '$a op_gone' 'op_gone: libtapegrad.so' 2
check "a name that is new" finds exported.txt /^op_add$/d 'op_add: not in ' 1
check "another parameter" finds declared.txt 's/op_tanh(Tape \*/&, int/' 'op_tanh(Tape *, int, Tensor *): libtapegrad.so' 2
check "a macro that is gone" finds declared.txt '$a #define tensor(...)' '#define tensor(...): libtapegrad.so' 2
check "a member that moved" finds declared.txt 's/^AdamConfig\[2\].*/AdamConfig[2] int eps/' 'AdamConfig[2] int eps: libtapegrad.so' 2
check "a member that is new" finds declared.txt '/^AdamConfig\[4\]/d' 'AdamConfig[4] Schedule schedule: it changes the layout' 2
check "an enumerator that is new" finds declared.txt '/ PRECISION_BF16$/d' 'PRECISION_BF16: not in ' 1
check "a struct that is new" finds declared.txt '/^AdamConfig\[/d' 'AdamConfig[0] double learning_rate: not in ' 1
report
