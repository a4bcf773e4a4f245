#!/usr/bin/env bash
# The library in two files, as a user builds it, without warnings.
#   tests/one_file.sh BUILD_DIRECTORY             by gcc and clang: two_moons with OpenMP, with one thread and
#                                                 with -DTAPEGRAD_PLAIN, as strict C11, the tests of
#                                                 layers, and tiny_gpt and the copy task
#   tests/one_file.sh BUILD_DIRECTORY platforms   two_moons by musl and by the cross compilers that are
#                                                 installed; the tests of operations and files
set -eu
build=${1:?usage: tests/one_file.sh BUILD_DIRECTORY [platforms]}
cd "$(dirname "$0")/.."
out=$build/one_file$([ $# -eq 1 ] || echo -platforms)
rm -rf "$out" && mkdir -p "$out/tests"
flags="-O3 -Wall -Wextra -Werror -I$build"

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
# last NAME LINE: the last line of two_moons's output
learned() {
    case $2 in *"step 300  loss 0.0"*) echo "two_moons: $1: $2" ;; *) echo "two_moons: $1: $2" >&2 && exit 1 ;; esac
}

# compile_test NAME: with the two files' object
compile_test() {
    gcc -std=gnu11 -O1 -fopenmp -I$build -I. -DTAPEGRAD_CPU tests/test_$1.c tests/support.c $([ $1 = file ] && echo tests/folder.c) \
        "$out/tapegrad.o" $(pkg-config --libs check) -lm -o "$out/tests/test_$1"
}
object() { # OPTION...
    local start=$(date +%s%N)
    gcc $flags -march=native -fopenmp "$@" -c "$build/tapegrad.c" -o "$out/tapegrad.o"
    echo "the object: gcc $*: compiled in $((($(date +%s%N) - start) / 1000000)) ms"
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
        begin two_moons wasm clang --target=wasm32-wasi -O1
    fi
    if command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
        begin two_moons aarch64 aarch64-linux-gnu-gcc -O1 -static
    fi
    begin two_moons gcc-one-thread gcc -march=native -O1
    ! command -v clang >/dev/null || begin two_moons clang-plain clang -march=native -DTAPEGRAD_PLAIN -O1
    finish
    for kind in musl m32 gcc-one-thread clang-plain; do
        [ ! -e "$out/two_moons_$kind" ] || learned $kind "$("$out/two_moons_$kind" 2>&1 | tail -n 1)"
    done
    wine=$(command -v wine || ls /usr/lib/wine/wine64 2>/dev/null || true)
    if [ -e "$out/two_moons_mingw.exe" ] && [ -n "$wine" ]; then
        learned mingw "$(WINEDEBUG=-all WINEPREFIX=$PWD/$out/wine "$wine" "$out/two_moons_mingw.exe" 2>/dev/null | tr -d '\r' | tail -n 1)"
    fi
    [ ! -e "$out/two_moons_wasm" ] || learned wasm "$(node --no-warnings tests/wasi.mjs "$out/two_moons_wasm" | tail -n 1)"
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
if command -v clang >/dev/null; then
    begin two_moons clang clang -march=native -fopenmp
    begin two_moons clang-one-thread clang -march=native -O1
fi
begin two_moons gcc-plain gcc -march=native -DTAPEGRAD_PLAIN -O1
begin gcc -std=c11 -fsyntax-only -Wall -Wextra -Wpedantic -Werror -DTAPEGRAD_PLAIN -I$build "$build/tapegrad.c"
finish
echo "strict C11: plain kernels compile"
gcc $flags examples/two_moons.c "$out/tapegrad.o" -fopenmp -o "$out/two_moons_gcc" -lm
for kind in gcc clang clang-one-thread gcc-plain; do
    [ ! -e "$out/two_moons_$kind" ] || learned $kind "$("$out/two_moons_$kind" 2>&1 | tail -n 1)"
done

echo '== the tests'
compile_test layers
tests/run "$out" $(printf '%s\n' tests/test_*.sh | sed 's#.*/##')
for program in tiny_gpt copy_task; do
    gcc -O3 -march=native -fopenmp -I$build examples/$program.c "$out/tapegrad.o" -lm -o "$out/$program"
done
"$out/tiny_gpt" 60
export OMP_PROC_BIND=true GOMP_SPINCOUNT=1000
"$out/copy_task" 300
