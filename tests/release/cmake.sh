#!/usr/bin/env bash
# The library in projects that use CMake, with the lines of docs/building.md as they are printed: by add_subdirectory,
# FetchContent and find_package, in C and in C++, with each option. What fails in a wrong project is one sentence.
#   CMAKE=cmake  another version of CMake
cd "$(dirname "$0")/../.." && . tests/check.sh
unset MAKEFLAGS MFLAGS MAKELEVEL # of the make that runs this
unset CFLAGS CXXFLAGS LDFLAGS TAPEGRAD_ARCH CMAKE_BUILD_TYPE CMAKE_GENERATOR
export CMAKE_EXPORT_COMPILE_COMMANDS=ON CMAKE_BUILD_PARALLEL_LEVEL=2
cmake=$(command -v "${CMAKE:-cmake}")
page() { tests/printed.sh docs/building.md "$1"; }
project=$(page add_subdirectory) fetch=$(page FetchContent_Declare) install=$(page 'cmake --install')
"$cmake" --version | head -n 1

# A clone, in which sources may change; and a zip of the two files with what a release has beside them.
tree=$directory/tree
mkdir "$tree" && git ls-files -co --exclude-standard | xargs cp --parents -t "$tree"
version=$(sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
zipped() {
    local to=$directory/tapegrad-$version
    make -s CUDA=no BUILD="$directory/one-file" one-file && mkdir "$to" &&
        cp CMakeLists.txt LICENSE "$directory"/one-file/{tapegrad.h,tapegrad.c,extend.h} "$to" &&
        (cd "$directory" && "$cmake" -E tar cf "$directory/tapegrad-$version.zip" --format=zip "tapegrad-$version")
}
check "a zip" zipped

# project_of NAME LANGUAGE [LINE]: the printed project in a directory NAME, with LINE in place of add_subdirectory
project_of() {
    local suffix=c line=${3:-add_subdirectory(tapegrad)}
    [ "$2" = C ] || suffix=cpp
    mkdir -p "$directory/$1" && cp examples/two_moons.c "$directory/$1/program.$suffix" && ln -sfn "$tree" "$directory/$1/tapegrad" &&
        cp "$directory/tapegrad-$version.zip" "$directory/$1" &&
        sed "s/LANGUAGES C)/LANGUAGES $2)/; s/program[.]c)/program.$suffix)/" <<<"${project/add_subdirectory(tapegrad)/$line}" \
            >"$directory/$1/CMakeLists.txt"
}
configure() { # NAME [OPTION...]
    "$cmake" -S "$directory/$1" -B "$directory/$1/build" -Wdev -Werror=dev "${@:2}"
}
compile() { "$cmake" --build "$directory/$1/build"; } # NAME
learns() { # NAME [LOSS]: two_moons's last line
    "$directory/$1/build/my_program" | tail -n 1 | tee /dev/stderr | grep -qx "step 300  loss ${2:-0.0095}"
}
# builds NAME [OPTION...]: the project, which then trains
builds() {
    check "$1: cmake ${*:2}" configure "$@"
    check "$1: cmake --build" compile "$1"
    check "$1: two moons" learns "$1" ${loss:-}
}
flags() { # NAME FILE: of its compilation
    sed -n "s/^ *\"command\": \"\(.*$2\)\",*$/\1/p" "$directory/$1/build/compile_commands.json" | grep .
}
has_flags() { # NAME FILE FLAG...
    local words flag
    words=" $(flags "$1" "$2") "
    for flag in "${@:3}"; do
        [[ $words == *" $flag "* ]] || { echo "$flag is not in$words" && return 1; }
    done
}
lacks_flag() { ! has_flags "$@" >/dev/null; }
fast='-DCMAKE_BUILD_TYPE=Debug' # where values matter, and speed does not

# As it is printed. The flags are those of the Makefile.
project_of printed C
builds printed
from_make=$(make -n CUDA=no BUILD="$directory/flags" "$directory/flags/tensor/shape.o" | grep -oE -- '-(std=|march=|mmove|mstore|f(no|open))[^ ]*')
check "the Makefile's flags" has_flags printed tapegrad.c -O3 $from_make
check "the program's flags" lacks_flag printed program.c -march=native
check "position-independent code" has_flags printed tapegrad.c -fPIC

# C++ alone, and warnings that the library's own sources are not free of. A second build compiles nothing; a changed, a
# new and a removed source are found.
project_of plusplus CXX
sed -i '/^project/a add_compile_options(-Wall -Wextra -Wconversion $<$<COMPILE_LANGUAGE:C>:-Wpadded> -Werror)' \
    "$directory/plusplus/CMakeLists.txt"
builds plusplus $fast -DTAPEGRAD_PLAIN=ON
compiled() { compile plusplus | grep -c 'Building C object'; }
symbols() { nm "$directory/plusplus/build/tapegrad/libtapegrad.a" | grep -c added_by_a_test; }
rebuilds() { # COMPILED SYMBOLS
    [ "$(compiled) $(symbols)" = "$*" ]
}
check "a build without changes" rebuilds 0 0
echo 'int added_by_a_test(void) { return 1; }' >>"$tree/tensor/shape.c"
check "a changed source" rebuilds 1 1
echo 'int also_added_by_a_test(void) { return 1; }' >"$tree/ops/added.c"
check "a new source" rebuilds 1 2
rm "$tree/ops/added.c"
check "a removed source" rebuilds 1 1
cp tensor/shape.c "$tree/tensor/shape.c"
check "a source as it was" rebuilds 1 0
touch "$tree/tapegrad.h"
check "a source with another time" rebuilds 0 0

# FetchContent, from the zip, and from a directory; the options.
project_of fetched CXX "$fetch"
builds fetched $fast -DTAPEGRAD_THREADS=OFF -DTAPEGRAD_NUCLEUS=ON
check "the nucleus for the program" has_flags fetched program.cpp -DTAPEGRAD_NUCLEUS
check "without threads" lacks_flag fetched tapegrad.c -fopenmp
project_of directory C "$fetch"
builds directory $fast -DTAPEGRAD_DOUBLE=ON -DTAPEGRAD_PLAIN=ON "-DFETCHCONTENT_SOURCE_DIR_TAPEGRAD=$tree"
check "double for the program" has_flags directory program.c -DTAPEGRAD_DOUBLE
check "the plain kernels" has_flags directory tapegrad.c -DTAPEGRAD_PLAIN

# find_package, after CMake or make has installed a library, whose directory has then moved.
found="find_package(tapegrad ${version%.*} REQUIRED)"
as_printed() { # OPTION...: the commands of docs/building.md, with HOME another directory and these options too
    (cd "$tree" && cmake() { if [ "$1" = -B ]; then "$cmake" "$@" "${options[@]}"; else "$cmake" "$@"; fi; } &&
        options=("$@") && HOME=$directory/home && rm -rf build-cmake && eval "$install" &&
        rm -rf "$directory/moved" && mv "$directory/home/tapegrad" "$directory/moved")
}
installed() { (cd "$directory/moved" && find . ! -type d | LC_ALL=C sort | xargs); }
package=lib/cmake/tapegrad/tapegradConfig
has_files() { # FILE...
    [ "$(installed)" = "$(printf './%s\n' "$@" "${package}"{,Version}.cmake include/tapegrad/{extend,tapegrad}.h | LC_ALL=C sort | xargs)" ]
}
soname() { [ "$(objdump -p "$directory/moved/lib/libtapegrad.so" | awk '$1 == "SONAME" { print $2 }')" = "libtapegrad.so.${version%.*}" ]; }
finds() { # NAME LANGUAGE [TARGET]
    project_of "$1" $2 "$found"
    [ $# -lt 3 ] || sed -i "s/tapegrad::tapegrad/$3/" "$directory/$1/CMakeLists.txt"
    builds "$1" "-DCMAKE_PREFIX_PATH=$directory/moved"
}
exports() {
    nm -D --defined-only "$directory/moved/lib/libtapegrad.so" | awk '$3 !~ /^_/ { print $3 }' | LC_ALL=C sort |
        diff - <(grep -v '^#' tests/exported.txt)
}
check "cmake --install" as_printed $fast
check "its files" has_files lib/libtapegrad.so{,.${version%.*},.$version} $package-debug.cmake
check "its SONAME" soname
check "its exported names" exports
finds shared C
finds shared-plusplus CXX
check "cmake --install, the archive" as_printed $fast -DBUILD_SHARED_LIBS=OFF -DTAPEGRAD_PLAIN=ON
check "its files" has_files lib/libtapegrad.a $package-debug.cmake
finds static C
finds static-plusplus CXX

make_install() { # VARIABLE=VALUE...
    make -s CUDA=no DESTDIR="$directory/root" PREFIX=/usr "$@" && rm -rf "$directory/moved" && cp -r "$directory/root/usr" "$directory/moved"
}
check "make install" make_install install
finds make-shared C
finds make-static CXX tapegrad::static
check "make install LIBDIR= INCLUDEDIR=" make_install install LIBDIR=/usr/lib/x86_64-linux-gnu INCLUDEDIR=/usr/headers/c
rm -r "$directory/moved/include" "$directory/moved/lib/cmake"
finds make-moved CXX

# refused NAME TEXT [OPTION...]: CMake ends with a sentence that has TEXT
refused() {
    local said
    rm -rf "$directory/$1/refused"
    ! said=$("$cmake" -S "$directory/$1" -B "$directory/$1/${build_directory:-refused}" "${@:3}" 2>&1) &&
        said=$(tr -s ' \n' ' ' <<<"$said") && [[ $said == *"$2"* ]] || { echo "$1 ${*:3}: $said" && return 1; }
}
versions() { # accepts|refuses VERSION...: as find_package of an installed library
    local wanted=$1 asked result
    for asked in "${@:2}"; do
        project_of wrong C "find_package(tapegrad $asked REQUIRED)"
        refused wrong 'compatible with requested version' "-DCMAKE_PREFIX_PATH=$directory/moved" >/dev/null && result=refuses || result=accepts
        rm -rf "$directory/wrong"
        [ $result = $wanted ] || { echo "find_package(tapegrad $asked): $result" && return 1; }
    done
}
right="${version%.*} ${version%.*}.0 $version" wrong="0.0.9 ${version%.*}.99 ${version%.*}0 $((${version%%.*} + 1)).0"
check "right versions, after make install" versions accepts $right
check "wrong versions, after make install" versions refuses $wrong
check "cmake --install" as_printed $fast -DBUILD_SHARED_LIBS=OFF -DTAPEGRAD_PLAIN=ON
check "right versions" versions accepts $right
check "wrong versions" versions refuses $wrong

project_of refusals C
check "threads without OpenMP" refused refusals 'TAPEGRAD_THREADS=ON, but' -DTAPEGRAD_THREADS=ON -DCMAKE_DISABLE_FIND_PACKAGE_OpenMP=ON
check "no awk" refused refusals "or take the release's zip" -DTAPEGRAD_AWK=OFF
build_directory='a blank' check "a blank" refused refusals "the release's zip has the file" -DTAPEGRAD_THREADS=OFF
check "MSVC" refused refusals 'instead of MSVC' -DMSVC=1
check "in the tree" refused tree 'CMake would overwrite the Makefile' -B "$tree"
check "in the project" refused refusals 'CMake would overwrite the Makefile' -B "$directory/refusals"
check "the Makefile" cmp Makefile "$tree/Makefile"

report
