#!/usr/bin/env bash
# make dist: two clones in directories of different names, and an unpacked archive, give the same bytes; each archive,
# unpacked, passes what its README promises. The trees have no .git and no directory of ours above them.
# (make nightly PART=11)
cd "$(dirname "$0")/../.." || exit 2
. tests/check.sh
[ -e .git ] || { echo "not tested: make dist of two clones, without .git" && exit; }
unset MAKEFLAGS MFLAGS MAKELEVEL BUILD
version=$(sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
name=tapegrad-$version
first=$directory/first second="$directory/elsewhere/another-name" book=$directory/tapegrad-book-$version

clone() { git clone -q . "$1"; }
check "the first clone" clone "$first"
check "the second clone" clone "$second"
check "make dist" make -C "$first" dist
# Another user's settings change nothing, and neither do untracked files.
elsewhere() {
    echo 'int unknown_to_the_commit;' >"$second/tensor/untracked.c"
    (umask 077 && TZ=Asia/Tokyo LC_ALL=C.UTF-8 make -C "$second" CC=clang REAL=double BUILD=other dist)
}
check "make dist in another directory" elsewhere
check "equal bytes" diff -r "$first/build/dist" "$second/other/dist"
[ "$failures" -eq 0 ] || { report; exit; } # what follows needs the archives
listed() {
    [ "$(find "$first/build/dist" -mindepth 1 -printf '%f\n' | sort | xargs)" = \
        "SHA256SUMS $name.spdx $name.tar.gz $name.zip tapegrad-book-$version.zip" ] &&
        (cd "$first/build/dist" && sha256sum --check --quiet SHA256SUMS)
}
check "SHA256SUMS" listed
# refuses SENTENCE DIRECTORY: make dist there
refuses() { ! make -C "$2" dist >"$directory/refused" 2>&1 && grep -qF "make dist: $1" "$directory/refused"; }
echo >>"$second/README.md"
check "a changed file is refused" refuses "tracked files differ from commit " "$second"

# The source archive.
tar -xzf "$first/build/dist/$name.tar.gz" -C "$directory"
cd "$directory/$name" || exit 2
check "MANIFEST" sha256sum --check --quiet MANIFEST
complete() {
    git -C "$first" ls-files | grep -vxF '.gitattributes
.git-blame-ignore-revs' | grep -v '^.github/' | diff - <(sed -n '/^#/!s/^[0-9a-f]*  //p' MANIFEST) &&
        diff <(find . -type f -not -name MANIFEST | sed 's,^\./,,' | LC_ALL=C sort) <(sed -n '/^#/!s/^[0-9a-f]*  //p' MANIFEST)
}
check "all tracked files, and no others" complete
again() { ./dist.sh "$directory/again" source && cmp "$directory/again/$name.tar.gz" "$first/build/dist/$name.tar.gz"; }
check "make dist in the archive" again
check "make all" make CUDA=no all
check "the copy task" build/programs/copy_task --steps 200 --log build/short.csv
check "make language-check" make -s language-check
tests() {
    make CUDA=no test ONLY='test_rows test_file test_random test_vectors test_readme.sh test_language.sh test_run.sh
        test_nightly.sh test_version.sh test_ci.sh test_build.sh' && ! grep '^not tested' build/test-logs/*.log
}
check "tests of the archive" tests
echo >>README.md
check "a file that MANIFEST has otherwise" refuses "files differ from MANIFEST" .
rm MANIFEST
check "neither a clone nor an archive" refuses "needs a git clone, or an archive" .

# The two files, as their README prints it.
printed=$PWD/tests/printed.sh
mkdir "$directory/files" && cd "$directory/files" && unzip -q "$first/build/dist/$name.zip" && cd "$name" || exit 2
compiles() { # TEXT: the line that has it
    eval "cc() { command ${CC:-gcc} \"\$@\"; }; $("$printed" README.md "$1")" >"$directory/output" &&
        "$printed" README.md 'loss ' | grep . | diff - <(tail -n 1 "$directory/output")
}
check "README.md's first line" compiles -O2
check "README.md's second line" compiles -march=native
by_cmake() {
    mkdir "$directory/project" && cd "$directory/project" && ln -s "$directory/files/$name" tapegrad && cp tapegrad/two_moons.c program.c &&
        "$printed" "$directory/$name/docs/building.md" add_subdirectory >CMakeLists.txt && cmake -B build && cmake --build build &&
        build/my_program >output && tail -n 1 output | grep 'loss 0[.]0095'
}
if command -v cmake >/dev/null; then
    check "CMake" by_cmake
    cd "$directory/files/$name" || exit 2
else
    echo "not tested: the zip by CMake"
fi
check "a program that extends it" sh -c 'printf "#include <tapegrad.h>\n#include \"extend.h\"\nint x;\n" | cc -I. -fsyntax-only -x c -'

# The book.
cd "$directory" && unzip -q "$first/build/dist/tapegrad-book-$version.zip" || exit 2
links() {
    local page link
    for page in "$book"/*.html; do
        for link in $(grep -oE '(href|src)="[^":#]*' "$page" | sed 's/.*"//'); do
            [ -e "$book/$link" ] || { echo "$page links to $link, which does not exist" && return 1; }
        done
    done
}
check "the book's pages" [ "$(find "$book" -name '*.html' | wc -l)" -ge 15 ]
check "the book's links" links
# Compiled by the command at its head; nobody has solved it.
exercise() {
    cd "$book/exercises" && eval "$(sed -n 's/^ \*     cc /cc /p' tape_gradients/student.c)" && ! ./a.out >"$directory/output" &&
        grep '^tape_gradients: ' "$directory/output"
}
check "an exercise" exercise
report
