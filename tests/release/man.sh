#!/usr/bin/env bash
# make man: pages that mandoc accepts without a word, with all options that the programs print and the example
# program as it is; the same bytes again; installed, and removed. (make nightly PART=11)
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES
made() { make -s CUDA=no BUILD="$build" "$@"; }

check "make man" made man
again() { TZ=Asia/Tokyo LC_ALL=C.UTF-8 made MAN="$directory/man" man && diff -r "$build/man" "$directory/man"; }
check "the same bytes again" again

text() { mandoc -Tascii -O width=120 "$1" | col -bx; } # as a reader has it
accepted() { ! mandoc -Tlint "$1" 2>&1 | grep .; }
named() { text "$1" | grep -E "^ +$(basename "${1%.*}") - [a-z]"; } # for apropos
# The options and arguments of the program and its commands, a line each.
arguments() {
    local program=$1 commands command
    commands=$("$program" --help | awk -v name="$(basename "$program")" '$0 ~ "^  " name " [^ ]" { print $2 }')
    for command in $commands ''; do "$program" $command --help || return; done |
        sed -nE "s/^  ($(basename "$program") )?(-*[A-Za-z0-9-]+).*/\2/p" | sort -u
}
complete() { # PAGE PROGRAM
    arguments "$2" >"$directory/arguments" && [ -s "$directory/arguments" ] && text "$1" >"$directory/text" &&
        while read -r argument; do
            grep -qE "^ +$argument( |$)" "$directory/text" || { echo "$1 lacks $argument" && return 1; }
        done <"$directory/arguments"
}
for page in "$build"/man/*; do
    check "mandoc -Tlint $page" accepted "$page"
    check "the first line of $page" named "$page"
done
pages=0
for program in "$build"/programs/*; do
    name=$(basename "$program")
    page=$build/man/tapegrad-${name//_/-}.1 pages=$((pages + 1))
    check "the options of $page" complete "$page" "$program"
done
check "a page for each program" test "$pages" -eq "$(ls "$build"/man/*.1 | wc -l)"
sed '/-attention/d' "$build/man/tapegrad-copy-task.1" >"$directory/incomplete.1"
lacks() { ! complete "$directory/incomplete.1" "$build/programs/copy_task"; }
check "an option that a page lacks is found" lacks

# tapegrad(7): its example is the file, and its command compiles it against the installed library.
section() { text "$build/man/tapegrad.7" | sed -n "/^$1\$/,/^[A-Z]/{/^[A-Z]/d;s/^ \{14\}//;p}"; }
example() { diff <(section EXAMPLE | sed '$d') examples/two_moons.c; }
check "the example" example
check "make install" made DESTDIR="$directory" PREFIX=/usr install-files install-programs-files
command=$(section SYNOPSIS | grep '^cc ')
as_printed() (
    export PKG_CONFIG_PATH=$directory/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$directory LD_LIBRARY_PATH=$directory/usr/lib
    cp examples/two_moons.c "$directory" && cd "$directory" && eval "$command" | tail -n 1 | grep 'loss 0.0095$'
)
check "$command" as_printed

installed() { diff <(cd "$directory/usr/share/man" && cat man1/* man7/*) <(cat "$build"/man/*); }
check "installed pages" installed
check "make uninstall" made DESTDIR="$directory" PREFIX=/usr uninstall
check "pages after make uninstall" test -z "$(find "$directory/usr/share" ! -type d)"
report
