#!/usr/bin/env bash
# What is published of a version, written into DIRECTORY (make dist):
#   tapegrad-VERSION.tar.gz     the source archive, with MANIFEST: the commit, its time, a SHA-256 per file
#   tapegrad-VERSION.zip        the two files, a program and a README of their own
#   tapegrad-book-VERSION.zip   the book
#   tapegrad-VERSION.spdx       the SPDX document of these three
#   SHA256SUMS
# A commit gives the same bytes in every directory: all files have its time, no owner, and stand in order. The book
# also depends on the versions of pandoc, clang, fontTools and gzip. The zips are built in the source archive,
# unpacked, so nothing that the commit lacks enters them. An unpacked archive has no commit; its MANIFEST serves
# instead, and gives the same bytes again.
#   ./dist.sh DIRECTORY [source]   source: the source archive alone
set -euo pipefail
out=$(realpath -m "${1:?usage: ./dist.sh DIRECTORY [source]}")
cd "$(dirname "$0")"
unset MAKEFLAGS MFLAGS MAKELEVEL CC WASM_CC # of the make that runs this: its variables are not those of a release
export LC_ALL=C TZ=UTC
umask 022

refuse() { echo "make dist: $*" >&2 && exit 1; }
if [ "${2:-}" != source ]; then
    for tool in zip pandoc wasm-ld; do
        command -v "$tool" >/dev/null || refuse "needs $tool: make RELEASE=yes deps installs it"
    done
fi
version=$(sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
name=tapegrad-$version book=tapegrad-book-$version
mkdir -p "$out"
(cd "$out" && rm -f "$name.tar.gz" "$name.zip" "$book.zip" "$name.spdx" SHA256SUMS)
work=$(mktemp -d "$out/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
tree=$work/$name
mkdir "$tree"

if [ -e .git ]; then
    commit=$(git rev-parse --verify HEAD) time=$(git log -1 --format=%ct)
    git diff --quiet HEAD || refuse "tracked files differ from commit ${commit:0:7}, and a version is that of a commit"
    git archive HEAD | tar -x -C "$tree"
    sums=$(cd "$tree" && find . -type f | sed 's,^\./,,' | sort | xargs sha256sum)
    printf '# %s, commit %s, time %d\n%s\n' "$name" "$commit" "$time" "$sums" >"$tree/MANIFEST"
elif [ -f MANIFEST ]; then
    time=$(sed -n '1s/.*, time //p' MANIFEST)
    sha256sum --check --quiet MANIFEST >&2 || refuse "files differ from MANIFEST, and a version is that of a commit"
    { echo MANIFEST && sed -n '/^#/!s/^[0-9a-f]*  //p' MANIFEST; } | tar -c -T - | tar -x -C "$tree"
else
    refuse "needs a git clone, or an archive that make dist has written, which has MANIFEST"
fi

# of_the_commit DIRECTORY: the commit's time, and what everybody may read
of_the_commit() {
    chmod -R u=rwX,go=rX "$1"
    find "$1" -exec touch -d "@$time" {} +
}
# pack_zip DIRECTORY: a zip of it
pack_zip() {
    of_the_commit "$work/$1"
    (cd "$work" && find "$1" -type f | sort | zip -q -9 -X -@ "$out/$1.zip")
}
of_the_commit "$tree"
tar -C "$work" --sort=name --format=ustar --owner=0 --group=0 --numeric-owner -c "$name" | gzip -9n >"$out/$name.tar.gz"
[ "${2:-}" != source ] || exit 0
mv "$tree" "$work/source"

make -s -C "$work/source" CUDA=no BUILD=build one-file book >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2 && refuse "make one-file book fails in the source archive"; }
cd "$work/source"
mkdir "$work/$name"
cp build/tapegrad.[ch] build/extend.h examples/two_moons.c CMakeLists.txt LICENSE "$work/$name"
cp docs/two_files.md "$work/$name/README.md"
pack_zip "$name"
cp -r build/book "$work/$book"
cp LICENSE "$work/$book"
# What its pages contain of others: a font, and of WebAssembly's C library and compiler.
mkdir "$work/$book/licenses"
for package in fonts-texgyre-math wasi-libc libclang-rt-14-dev-wasm32; do
    cp "/usr/share/doc/$package/copyright" "$work/$book/licenses/$package"
done
pack_zip "$book"

# sha FILE: its SHA-256
sha() { sha256sum "$out/$1" | cut -d ' ' -f 1; }
source_sum=$(sha "$name.tar.gz")
# A document needs a URI of its own: a UUID (version 8) of the source archive's checksum.
uuid=${source_sum:0:8}-${source_sum:8:4}-8${source_sum:13:3}-8${source_sum:17:3}-${source_sum:20:12}
sed "s/@VERSION@/$version/g; s/@UUID@/$uuid/; s/@CREATED@/$(date -u -d "@$time" +%Y-%m-%dT%H:%M:%SZ)/
    s/@SOURCE_SHA256@/$source_sum/; s/@FILES_SHA256@/$(sha "$name.zip")/
    s/@BOOK_SHA256@/$(sha "$book.zip")/" tapegrad.spdx.in >"$out/$name.spdx"
cd "$out"
sha256sum "$name.spdx" "$name.tar.gz" "$name.zip" "$book.zip" >SHA256SUMS
cat SHA256SUMS
