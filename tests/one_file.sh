#!/usr/bin/env bash
# The library in two files, as a user builds it, without warnings.
#   tests/one_file.sh BUILD_DIRECTORY             by gcc and clang: two_moons with OpenMP, as docs/building.md
#                                                 prints it, with one thread and with -DTAPEGRAD_PLAIN, as
#                                                 strict C11, twice in one process, the tests of layers, and
#                                                 tiny_gpt and the copy task
#   tests/one_file.sh BUILD_DIRECTORY platforms   two_moons as README prints it, by musl and by the cross
#                                                 compilers that are installed; a transformer in WebAssembly;
#                                                 the tests of operations and files
set -eu
build=${1:?usage: tests/one_file.sh BUILD_DIRECTORY [platforms]}
cd "$(dirname "$0")/.."
out=$build/one_file$([ $# -eq 1 ] || echo -platforms)
rm -rf "$out" && mkdir -p "$out/tests"
strict='-Wall -Wextra -Wshadow -Werror'
flags="-O3 $strict -I$build"

# begin COMMAND... : in the background, two at a time; finish: waits for all. A failure ends the script.
running=0
begin() {
    if [ $running -eq 2 ]; then wait -n; running=1; fi
    "$@" &
    running=$((running + 1))
}
finish() {
    for (( ; running > 0; running--)); do wait -n; done
}
# two_moons NAME COMPILER... : compiles examples/two_moons.c and the two files
two_moons() {
    local start=$(date +%s%N)
    "${2}" $flags "${@:3}" examples/two_moons.c "$build/tapegrad.c" -o "$out/two_moons_$1" -lm
    echo "two_moons: $1: compiled in $((($(date +%s%N) - start) / 1000000)) ms"
}
# as_printed DIRECTORY COMMANDS NAME COMPILER...: runs commands of a page there, with that compiler under the name
# that they have for it; options of COMPILER follow theirs
as_printed() {
    local start=$(date +%s%N)
    mkdir "$1/bin"
    printf '#!/bin/sh\nPATH=%q; exec %s "$@" %s\n' "$PATH" "$4" "${*:5}" >"$1/bin/$3" && chmod +x "$1/bin/$3"
    (cd "$1" && PATH=$PWD/bin:$PATH && eval "$2") >"$1/output"
    echo "as printed: $1: ${*:4}: compiled in $((($(date +%s%N) - start) / 1000000)) ms"
}
# folder NAME PROGRAM: program.c and the two files in a directory of their own
folder() {
    mkdir "$out/$1" && cp "examples/$2.c" "$out/$1/program.c" && cp "$build"/tapegrad.[ch] "$out/$1"
}
# learned NAME LINE: the last line of two_moons's output
learned() {
    case $2 in *"step 300  loss 0.0"*) echo "two_moons: $1: $2" ;; *) echo "two_moons: $1: $2" >&2 && exit 1 ;; esac
}

# compile_test NAME: with the two files' object
compile_test() {
    gcc -std=gnu11 -O1 -fopenmp -I$build -I. -DTAPEGRAD_CPU tests/test_$1.c tests/support.c $([ $1 = file ] && echo tests/folder.c) \
        "$out/tapegrad.o" $(pkg-config --libs check) -lm -o "$out/tests/test_$1"
}
# copy REAL OPTION...: a shared object with two_moons as in_REAL, and its own copy of the library
copy() {
    gcc -shared -fPIC -O0 -DTAPEGRAD_PLAIN -DTAPEGRAD_NUCLEUS "${@:2}" -Dmain=in_$1 -I$build examples/two_moons.c \
        "$build/tapegrad.c" -lm -o "$out/lib$1.so"
}
object() { # OPTION...
    local start=$(date +%s%N)
    gcc $flags -march=native -fopenmp "$@" -c "$build/tapegrad.c" -o "$out/tapegrad.o"
    echo "the object: gcc $*: compiled in $((($(date +%s%N) - start) / 1000000)) ms"
}

# refused TEXT COMPILER...: the compiler stops at a sentence with it
refused() {
    local sentence
    ! sentence=$("${@:2}" -E -I"$build" "$build/tapegrad.c" 2>&1 >/dev/null) && grep -qF -m 1 -e "$1" <<<"$sentence" ||
        { echo "${*:2}: \"$sentence\", expected an #error with \"$1\"" >&2 && exit 1; }
}

if [ "${2:-}" = platforms ]; then
    # Without the loops' vectors, which gcc and clang have below.
    begin object -O1
    if command -v musl-gcc >/dev/null; then
        begin two_moons musl musl-gcc -O1 -march=native -static
    fi
    if echo 'int main(void) { return 0; }' | gcc -m32 -x c - -o "$out/m32" 2>/dev/null; then
        begin two_moons m32 gcc -m32 -O1 -msse2 -mfpmath=sse -idirafter "/usr/include/$(gcc -print-multiarch)"
    fi
    if command -v x86_64-w64-mingw32-gcc >/dev/null; then
        begin two_moons mingw.exe x86_64-w64-mingw32-gcc -O1
    fi
    if command -v wasm-ld >/dev/null && command -v node >/dev/null && clang --target=wasm32-wasi -x c /dev/null -c -o "$out/empty.o" 2>/dev/null; then
        folder wasm micro_gpt
        begin as_printed "$out/wasm" "$(tests/printed.sh docs/building.md wasm32-wasi)" clang clang -O1 $strict
    fi
    if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
        begin two_moons aarch64 aarch64-linux-gnu-gcc -O1 -static
    fi
    mkdir -p "$out/readme/build" "$out/readme/examples" && cp "$build"/tapegrad.[ch] "$out/readme/build" && cp examples/two_moons.c "$out/readme/examples"
    begin as_printed "$out/readme" "$(tests/printed.sh README.md build/tapegrad.c | grep build/tapegrad.c)" cc gcc -march=native -O1 $strict
    ! command -v clang >/dev/null || begin two_moons clang-plain clang -march=native -DTAPEGRAD_PLAIN -O1
    finish
    learned readme "$(tail -n 1 "$out/readme/output")"
    for kind in musl m32 clang-plain; do
        [ ! -e "$out/two_moons_$kind" ] || learned $kind "$("$out/two_moons_$kind" 2>&1 | tail -n 1)"
    done
    wine=$(command -v wine || ls /usr/lib/wine/wine64 2>/dev/null || true)
    if [ -e "$out/two_moons_mingw.exe" ] && [ -n "$wine" ]; then
        learned mingw "$(WINEDEBUG=-all WINEPREFIX=$PWD/$out/wine "$wine" "$out/two_moons_mingw.exe" 2>/dev/null | tr -d '\r' | tail -n 1)"
    fi
    if [ -e "$out/wasm" ]; then
        node --no-warnings tests/wasi.mjs "$out/wasm/program.wasm" >"$out/wasm/output"
        grep -m 1 'step 1000  loss 1[.]9' "$out/wasm/output"
    fi
    [ ! -e "$out/two_moons_aarch64" ] || learned aarch64 "$(qemu-aarch64 "$out/two_moons_aarch64" | tail -n 1)"
    begin compile_test operations
    begin compile_test file
    finish
    tests/run "$out" $(printf '%s\n' tests/test_*.sh | sed 's#.*/##')
    exit
fi

echo "== size: $(cat "$build/tapegrad.c" "$build/tapegrad.h" | wc -c) bytes, $(wc -l <"$build/tapegrad.c") lines"
# The slowest first. With vectors and threads by the default -O3, else by -O1: what varies is the source.
begin object -g
folder printed two_moons
begin as_printed "$out/printed" "$(tests/printed.sh docs/building.md 'program.c tapegrad.c -lm')" cc $(command -v clang >/dev/null && echo clang || echo gcc -O1) $strict
if command -v clang >/dev/null; then
    begin two_moons clang-one-thread clang -march=native -O1
fi
begin two_moons gcc-plain gcc -march=native -DTAPEGRAD_PLAIN -O1
begin copy float
begin copy double -DTAPEGRAD_DOUBLE
begin gcc -std=c11 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -DTAPEGRAD_PLAIN -I$build "$build/tapegrad.c"
finish
echo "strict C11: plain kernels compile"
gcc $flags examples/two_moons.c "$out/tapegrad.o" -fopenmp -o "$out/two_moons_gcc" -lm
learned printed "$("$out/printed/a.out" 2>&1 | tail -n 1)"
for kind in gcc clang-one-thread gcc-plain; do
    [ ! -e "$out/two_moons_$kind" ] || learned $kind "$("$out/two_moons_$kind" 2>&1 | tail -n 1)"
done


# Two shared objects in one process, each with its own copy, export nothing but their own function.
echo 'int in_float(void), in_double(void); int main(void) { return in_float() || in_double(); }' >"$out/copies.c"
gcc "$out/copies.c" -L"$out" -lfloat -ldouble -Wl,-rpath,'$ORIGIN' -o "$out/copies"
"$out/copies" >"$out/copies.txt" 2>/dev/null && [ "$(grep -c 'step 300  loss 0.0' "$out/copies.txt")" = 2 ] ||
    { echo "two copies in one process: $(tail -n 1 "$out/copies.txt")" >&2 && exit 1; }
[ "$(nm -D --defined-only "$out/libfloat.so" | sed 's/.* //')" = in_float ]
echo 'two copies in one process: independent'

gcc $flags -fopenmp -c examples/extensions/signum.c -o "$out/signum.o" && gcc "$out/signum.o" "$out/tapegrad.o" -fopenmp -lm -o "$out/signum"
(cd "$out" && ./signum) | grep 'bitwise equal'
echo 'an extension of the two files: runs'

refused "MinGW-w64's gcc, or clang --target=x86_64-w64-mingw32" gcc -U__GNUC__ -D_MSC_VER=1930
refused 'tapegrad.h needs C99 or later' gcc -std=c90
refused 'compile it as C, for example with -std=gnu11' gcc -std=gnu99
refused 'compile it as C, for example with -std=gnu11' gcc -U__GNUC__
refused 'compile it as C, for example with -std=gnu11' g++ -x c++
echo 'other compilers and languages: refused with a sentence'

echo '== the tests'
compile_test layers
tests/run "$out" $(printf '%s\n' tests/test_*.sh | sed 's#.*/##')
for program in tiny_gpt copy_task; do
    gcc -O3 -march=native -fopenmp -I$build examples/$program.c "$out/tapegrad.o" -lm -o "$out/$program"
done
"$out/tiny_gpt" 60
export OMP_PROC_BIND=true GOMP_SPINCOUNT=1000
"$out/copy_task" 300
