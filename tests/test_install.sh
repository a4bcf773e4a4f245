#!/usr/bin/env bash
# Installs into an empty directory and builds a program there by pkg-config, as a user would.
. "$(dirname "$0")/check.sh"
real=${REAL:-float}

export PKG_CONFIG_PATH=$directory/usr/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$directory
export LD_LIBRARY_PATH=$directory/usr/lib
export TAPEGRAD_CUDA_ON_HOST_DEVICES=0 # the emulation is slow, and not what is tested here
libraries=${LIBS:--ldnnl -lm} sanitize=
[ -n "$(nm "$build/libtapegrad.a" | grep -m1 __asan)" ] && sanitize=-fsanitize=address,undefined
compile_file() { "${CC:-gcc}" -std=gnu11 $sanitize "$@"; }
compile() { compile_file examples/first_program.c "$@"; }

# The variables of the build, without which make would rebuild it: CUDA=yes NVCC_ARCHS="80 90" ... CC="gcc"
eval "made=($(cat "$build/settings"))"
check "make install" make -s BUILD="$build" "${made[@]}" DESTDIR="$directory" PREFIX=/usr install-files install-programs-files
check "linking the shared library" compile $(pkg-config --cflags --libs tapegrad) -o "$directory/shared"
check "running on the shared library" "$directory/shared"
check "linking the static library" compile $(pkg-config --cflags tapegrad) "$directory/usr/lib/libtapegrad.a" \
    -fopenmp $libraries -o "$directory/static"
check "running on the static library" "$directory/static"

# Programs outside of the tree that extend the library; and the definitions of the tree's extensions, as such.
strange='-Wall -Wextra -Wpedantic -Werror -Wno-unknown-pragmas -O2 -fopenmp'
extends() { # NAME LIBRARY...
    compile_file $strange "examples/extensions/$1.c" $(pkg-config --cflags tapegrad) "${@:2}" -lm -o "$directory/$1" &&
        (cd "$directory" && "./$1") >"$directory/$1.output" && grep -x 'resumed from step 200: bitwise equal' "$directory/$1.output"
}
for program in examples/extensions/*.c; do
    name=$(basename "$program" .c)
    check "$name with the shared library" extends $name $(pkg-config --libs tapegrad)
    mv "$directory/$name.output" "$directory/$name.shared"
    check "$name with the static library" extends $name "$directory/usr/lib/libtapegrad.a" $libraries
    check "$name with either" cmp "$directory/$name.shared" "$directory/$name.output"
done
cp -r ext "$directory"
outside() { # DIRECTORY
    compile_file -shared -fPIC -fopenmp $(pkg-config --cflags tapegrad) -I"$directory" "$directory/$1"/*.c -Wl,-z,defs \
        $(pkg-config --libs tapegrad) -lm -o "$directory/extension.so"
}
for extension in ext/*; do
    [ -n "$sanitize" ] || check "$extension outside of the tree" outside "$extension"
done

# The headers, the package, the library and its file name have the same version.
same_version() {
    local version
    printf '%s\n' '#include <stdio.h>' '#include <tapegrad.h>' 'int main(void) { return puts(tapegrad_version()) < 0; }' >"$directory/version.c" &&
        compile_file "$directory/version.c" $(pkg-config --cflags --libs tapegrad) -o "$directory/version" &&
        [ "$("$directory/version")" = "$(pkg-config --modversion tapegrad)" ] || return 1
    version=$(pkg-config --modversion tapegrad) && [ -e "$directory/usr/lib/libtapegrad.so.$version" ] &&
        [ "$(objdump -p "$directory/usr/lib/libtapegrad.so" | awk '$1 == "SONAME" { print $2 }')" = "libtapegrad.so.${version%.*}" ] &&
        grep -qxF "#define TAPEGRAD_VERSION \"$version\"" <(sed 's, /\*.*,,' "$directory/usr/include/tapegrad/tensor/tensor.h")
}
check "the version" same_version
# tests/release/cmake.sh builds programs with these files.
for_cmake() {
    local file=$directory/usr/lib/cmake/tapegrad/tapegradConfig
    ! grep -n @ "$file"{,Version}.cmake && grep -qF "\"../include/tapegrad\"" "$file.cmake" &&
        grep -qxF "set(PACKAGE_VERSION \"$(pkg-config --modversion tapegrad)\")" "${file}Version.cmake" &&
        grep -qF "INTERFACE_COMPILE_DEFINITIONS \"$([ "$real" = float ] || echo TAPEGRAD_DOUBLE)\")" "$file.cmake"
}
check "the files for CMake" for_cmake

# A program may define names that the library uses internally.
sed 's/^int main/double product(void);\ndouble product(void) { return 7; }\n&/' \
    examples/first_program.c >"$directory/own.c"
check "linking a program with a name of the library's" compile_file "$directory/own.c" \
    $(pkg-config --cflags tapegrad) "$directory/usr/lib/libtapegrad.a" \
    -fopenmp $libraries -o "$directory/own"
same_output() { cmp <("$directory/static") <("$directory/own"); }
check "running it" same_output

# Two processes, if the build has MPI.
ranks() {
    printf '%s\n' '#include <tapegrad.h>' 'int main(void) { dist_start(); double one = 1; dist_sum(&one, 1);' \
        'dist_finish(); return one != 2; }' >"$directory/ranks.c"
    OMPI_CC="${CC:-gcc}" MPICH_CC="${CC:-gcc}" mpicc -std=gnu11 $sanitize "$directory/ranks.c" \
        $(pkg-config --cflags --libs tapegrad-mpi) -o "$directory/ranks" &&
        OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0 \
            mpirun -np 2 "$directory/ranks"
}
[ ! -f "$build/libtapegrad_mpi.a" ] || check "two processes by MPI" ranks

# A program that drops the result of a function on files is warned.
warned() {
    local call
    for call in 'tensor_file_save(0, 0, 0, 0, "x")' 'tensor_file_can_save("x")' 'tensor_file_open("x")' \
        'tensor_file_read(0, "x", shape(1), 0)' 'tensor_file_read_i32(0, "x", shape(1), 0)' \
        'params_save(0, "x")' 'params_load(0, "x")' 'params_load_some(0, "x", 0, 0)' \
        'optim_save(0, 0, 0, 0, "x")' 'optim_load(0, 0, "x")' \
        'nn_transformer_state_save(0, "x")' 'nn_transformer_state_load(0, "x")'; do
        printf '#include <tapegrad.h>\nint main(void) { %s; }\n' "$call" |
            compile_file -Werror=unused-result -S -o /dev/null $(pkg-config --cflags tapegrad) -x c - 2>"$directory/warning"
        grep -q 'unused-result' "$directory/warning" || { echo "no warning: $call" && return 1; }
    done
}
check "dropped results" warned

# A program compiled with the other Real must not link.
other=$([ "$real" = double ] && echo -UTAPEGRAD_DOUBLE || echo -DTAPEGRAD_DOUBLE)
must_not_link() { ! compile $(pkg-config --cflags --libs tapegrad) $other -o "$directory/mixed"; }
check "a program for the other Real links" must_not_link

# All exported names have the public prefixes; NCCL's are exported where it is emulated.
exported() {
    nm -D --defined-only "$directory/usr/lib/libtapegrad.so" | awk '{ print $3 }' |
        grep -vE '^(device|tensor|random|shape|error|memory|kernel|tape|op|params|nn|optim|dist)_|^nccl[A-Z]|^gradient_check$|^tapegrad_|^_|^\.' | grep . && return 1
    return 0
}
[ -n "$sanitize" ] || check "exported names" exported

# A shared object that contains the archive exports none of it.
contains_all() {
    "${CC:-gcc}" -shared -Wl,--whole-archive "$directory/usr/lib/libtapegrad.a" -Wl,--no-whole-archive -fopenmp $libraries \
        -o "$directory/plugin.so" && ! nm -D --defined-only "$directory/plugin.so" | grep .
}
[ -n "$sanitize" ] || check "exported names of a shared object with the archive" contains_all

# The pages for man, where pandoc writes them.
pages() {
    local page=$directory/usr/share/man/man7/tapegrad.7
    if ! command -v pandoc; then [ ! -e "$page" ]; return; fi
    grep '^\.TH "TAPEGRAD" "7"' "$page" && diff <(ls "$directory/usr/bin") <(cd "$directory/usr/share/man/man1" && ls | sed 's/\.1$//')
}
check "the pages for man" pages

# A program prints the name by which it was called.
named() { # PROGRAM USAGE
    [ "$("$directory/usr/bin/$1" --help | head -n 1)" = "usage: $1 $2" ]
}
check "tapegrad-copy-task" named tapegrad-copy-task '[OPTION]...'
check "tapegrad-images" named tapegrad-images 'COMMAND [OPTION]...'
check "tapegrad-language-model" named tapegrad-language-model 'COMMAND [OPTION]...'
check "tapegrad-recall" named tapegrad-recall 'recall|parity [STEPS [ATTENTION [DEVICE]]]'

# Uninstalling leaves only files that it did not install.
mkdir -p "$directory/usr/share" && touch "$directory/usr/share/foreign" "$directory/usr/include/tapegrad/foreign.h"
uninstall() { make -s BUILD="$build" "${made[@]}" DESTDIR="$directory" PREFIX=/usr uninstall; }
check "make uninstall" uninstall
only_foreign_files() {
    cmp <(cd "$directory/usr" && find . ! -type d | sort) <(printf '%s\n' ./include/tapegrad/foreign.h ./share/foreign)
}
check "files after make uninstall" only_foreign_files
rm -f "$directory/usr/include/tapegrad/foreign.h"
check "make uninstall, again" uninstall
check "the folder of headers after make uninstall" test ! -e "$directory/usr/include/tapegrad"

# A prefix with a blank, or that the shell would read, is refused before anything is touched: uninstall
# removed the file "my" for the prefix "my tools".
touch "$directory/my"
refused() { # VARIABLE=VALUE
    local said
    for goal in uninstall install install-files install-programs; do
        ! said=$(make BUILD="$build" "${made[@]}" "$1" $goal 2>&1) && [[ $said == *"*** $1, expected a"*" path without blanks"* ]] ||
            { echo "make $goal $1: $said" && return 1; }
    done
    [ -e "$directory/my" ] && [ ! -e "$directory/my tools" ]
}
for wrong in PREFIX="$directory/my tools" PREFIX="$directory/my " PREFIX= PREFIX=relative 'PREFIX=~/x' PREFIX="$directory/a;b" \
    PREFIX="$directory/*" LIBDIR=lib64 INCLUDEDIR="$directory/it's" DESTDIR="$directory/my tools"; do
    check "$wrong" refused "$wrong"
done
said_of_build() { ! make BUILD="$directory/my build" all 2>"$directory/error" && grep -q 'BUILD=.*/my build, expected a path' "$directory/error" && [ -e "$directory/my" ]; }
check "a build directory with a blank" said_of_build

# Without PREFIX it is /usr/local; LIBDIR and INCLUDEDIR move what they name, in the package's file too.
by_default() { make -n BUILD="$build" "${made[@]}" uninstall | grep -q '^rm -f /usr/local/include/tapegrad/tapegrad.h '; }
check "the default prefix" by_default
multiarch() {
    make -s BUILD="$build" "${made[@]}" DESTDIR="$directory/multiarch" PREFIX=/usr LIBDIR=/usr/lib/arch INCLUDEDIR=/headers "$1"
}
check "make install LIBDIR= INCLUDEDIR=" multiarch install-files
moved() {
    export PKG_CONFIG_PATH=$directory/multiarch/usr/lib/arch/pkgconfig PKG_CONFIG_SYSROOT_DIR=
    [ "$(pkg-config --variable=libdir tapegrad) $(pkg-config --cflags-only-I tapegrad)" = "/usr/lib/arch -I/headers/tapegrad " ] &&
        [ -e "$directory/multiarch/headers/tapegrad/tapegrad.h" ] && [ -e "$directory/multiarch/usr/lib/arch/libtapegrad.so" ] &&
        [ ! -e "$directory/multiarch/usr/lib/libtapegrad.so" ] &&
        grep -qF '"../../../headers/tapegrad"' "$directory/multiarch/usr/lib/arch/cmake/tapegrad/tapegradConfig.cmake"
}
check "where the files are" moved
check "make uninstall LIBDIR= INCLUDEDIR=" multiarch uninstall
check "files after it" test -z "$(find "$directory/multiarch" ! -type d)"

# The commands of docs/building.md and README.md, as they are printed, behind make install.
export HOME=$directory/home PKG_CONFIG_SYSROOT_DIR= && mkdir -p "$HOME/work" && unset PKG_CONFIG_PATH LD_LIBRARY_PATH
[ "$real" = double ] && text=REAL=double || text='make install PREFIX=$HOME/tapegrad'
commands=$(tests/printed.sh docs/building.md "$text")
prefix=$(sed -n 's/^make .*PREFIX=//p' <<<"$commands")
as_printed() {
    make -s BUILD="$build" "${made[@]}" PREFIX="${prefix/\$HOME/$HOME}" install-files && cp examples/two_moons.c "$HOME/work/program.c" &&
        (cd "$HOME/work" && cc() { compile_file "$@"; } && eval "$(grep -v '^make ' <<<"$commands")" && ls && ./$(ls | grep -v '[.]c$'))
}
check "the commands of docs/building.md" as_printed
readme() {
    export PKG_CONFIG_PATH=${prefix/\$HOME/$HOME}/lib/pkgconfig LD_LIBRARY_PATH=${prefix/\$HOME/$HOME}/lib
    mkdir "$HOME/examples" && cp examples/two_moons.c "$HOME/examples" &&
        (cd "$HOME" && cc() { compile_file "$@"; } && eval "$(tests/printed.sh README.md pkg-config | grep pkg-config)")
}
check "README.md's command" readme

report
