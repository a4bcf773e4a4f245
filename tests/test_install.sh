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
check "make install" make -s BUILD="$build" "${made[@]}" DESTDIR="$directory" PREFIX=/usr install-files
check "linking the shared library" compile $(pkg-config --cflags --libs tapegrad) -o "$directory/shared"
check "running on the shared library" "$directory/shared"
check "linking the static library" compile $(pkg-config --cflags tapegrad) "$directory/usr/lib/libtapegrad.a" \
    -fopenmp $libraries -o "$directory/static"
check "running on the static library" "$directory/static"

# The headers, the package and the library's file name have the same version.
same_version() {
    local version
    version=$(pkg-config --modversion tapegrad) && [ -e "$directory/usr/lib/libtapegrad.so.$version" ] &&
        grep -qxF "#define TAPEGRAD_VERSION \"$version\"" <(sed 's, /\*.*,,' "$directory/usr/include/tapegrad/tensor/tensor.h")
}
check "the version" same_version

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
        grep -vE '^(device|tensor|random|shape|tape|op|params|nn|optim|dist)_|^nccl[A-Z]|^gradient_check$|^tapegrad_|^_|^\.' | grep . && return 1
    return 0
}
[ -n "$sanitize" ] || check "exported names" exported

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

report
