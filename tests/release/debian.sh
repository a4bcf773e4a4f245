#!/usr/bin/env bash
# The Debian packages: built from the commit by the commands of docs/building.md, checked by lintian, installed,
# used and purged. They are installed if this is root on a system without them, else unpacked into a directory.
. "$(dirname "$0")/../check.sh"
unset MAKEFLAGS MAKEOVERRIDES MFLAGS MAKELEVEL WERROR # of the make that runs this test
for tool in dh lintian dpkg-buildpackage; do
    command -v $tool >/dev/null || { echo "not tested: the Debian packages, without $tool" && exit; }
done
cd "$(dirname "$0")/../.." || exit 2
version=$(sed -n 's/.*define TAPEGRAD_VERSION "\(.*\)".*/\1/p' tensor/tensor.h)
commands=$(tests/printed.sh docs/building.md dpkg-buildpackage)
tree=$directory/tapegrad-$version
unpack() {
    git archive --format=tar.gz --prefix="tapegrad-$version/" HEAD >"$directory/tapegrad_$version.orig.tar.gz" &&
        tar -xzf "$directory/tapegrad_$version.orig.tar.gz" -C "$directory"
}
check "the archive of the commit" unpack
cd "$tree" || exit 2

check "the source package" dpkg-source --build .
build_packages() { DEB_BUILD_OPTIONS="parallel=2 ${DEB_BUILD_OPTIONS:-}" eval "$(grep '^dpkg-buildpackage' <<<"$commands")"; }
start=$SECONDS
check "dpkg-buildpackage" build_packages
[ $failures -eq 0 ] || { tail -n 40 "$directory/said"; report; exit 1; }
echo "built in $((SECONDS - start)) s: $(cd .. && echo *.deb)"
# No bug of Debian asks for these packages; the archive of the sources has debian/, so that there are no
# changes to it; and without man/ programs have no pages.
without=initial-upload-closes-no-bugs,no-debian-changes$([ -d man ] || echo ,no-manual-page)
lint() { lintian --pedantic --fail-on error,warning --suppress-tags $without ../*.dsc ../*.changes; }
check "lintian" lint
cat "$directory/said"

# What is in /: before, and after the packages are purged.
places="/usr /etc /var/lib/dpkg /var/lib/doc-base"
ours() { find $places -iname '*tapegrad*' 2>/dev/null | sort; }
packages="libtapegrad${version%.*} libtapegrad-dev tapegrad tapegrad-doc"
root=
if [ "$(id -u)" = 0 ] && ! dpkg-query -W -f '${Status}\n' $packages 2>/dev/null | grep -q ' installed$'; then
    ours >"$directory/before"
    trap 'dpkg --purge $packages >/dev/null 2>&1; rm -rf "$directory"' EXIT
    sudo() { DEBIAN_FRONTEND=noninteractive "$@" -y -qq --no-install-recommends; }
    install_packages() { eval "$(grep 'apt-get install' <<<"$commands")" && dpkg-query -W $packages; }
    check "apt-get install" install_packages
else
    root=$directory/root
    unpack_packages() { for package in ../*.deb; do dpkg -x "$package" "$root" || return 1; done; }
    check "dpkg -x" unpack_packages
    export PATH=$root/usr/bin:$PATH PKG_CONFIG_PATH=$(echo "$root"/usr/lib/*/pkgconfig) PKG_CONFIG_SYSROOT_DIR=$root
    export LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
fi
libraries=$(echo "$root"/usr/lib/*/libtapegrad.so.*.*.*)
libraries=${libraries%/*}

# The autopkgtests, and a program linked with the archive.
mkdir "$directory/tests"
for name in debian/tests/two-moons debian/tests/programs; do
    check "$name" env AUTOPKGTEST_TMP="$directory/tests" "$name"
done
archive() {
    gcc examples/two_moons.c $(pkg-config --cflags tapegrad) "$libraries/libtapegrad.a" -fopenmp -ldnnl -lm -o ../static &&
        ../static | grep 'step 300  loss 0[.]0095'
}
[ "$(dpkg --print-architecture)" != amd64 ] || check "the archive" archive

# The loader takes the library of the first level in its order that has one; all export the same names.
chosen() {
    local level found expected=$libraries
    for level in $(/lib64/ld-linux-x86-64.so.2 --help | awk '/[(]supported, searched[)]/ { print $1 }'); do
        [ -d "$libraries/glibc-hwcaps/$level" ] && expected=$libraries/glibc-hwcaps/$level && break
    done
    found=$(readlink -f "$(ldd "$root/usr/bin/tapegrad-copy-task" | awk '$1 ~ /^libtapegrad/ { print $3 }')")
    echo "found $found, expected $expected"
    [ "$found" = "$(readlink -f "$expected/libtapegrad.so.$version")" ]
}
same_names() {
    local library
    for library in "$libraries"/glibc-hwcaps/*/libtapegrad.so.*.*.*; do
        cmp <(nm -D --defined-only "$libraries"/libtapegrad.so.*.*.* | cut -d' ' -f3) <(nm -D --defined-only "$library" | cut -d' ' -f3) || return 1
    done
}
if [ -d "$libraries/glibc-hwcaps" ]; then
    check "the loader's choice" chosen
    check "exported names" same_names
fi

# Every program has its page, once there are pages; no link of a page of tapegrad-doc is broken.
manuals() {
    local program
    for program in "$root"/usr/bin/tapegrad-*; do
        zcat "$root/usr/share/man/man1/${program##*/}.1.gz" | grep -q '^[.]SH NAME' || { echo "${program##*/} has no page" && return 1; }
    done
    zcat "$root/usr/share/man/man7/tapegrad.7.gz" | grep -q '^[.]SH NAME'
}
[ ! -d man ] || check "man pages" manuals
links() {
    local page link broken=0
    cd "$root/usr/share/doc/tapegrad" || return 1
    for page in *.html docs/*.html book/*.html; do
        for link in $(grep -oE '(href|src)="[^":#]+["#]' "$page" | cut -d'"' -f2 | tr -d '#'); do
            [ -e "$(dirname "$page")/$link" ] || { echo "$page links to $link, which does not exist" && broken=1; }
        done
    done
    return $broken
}
check "links of tapegrad-doc" links
check "files of tapegrad-doc that are compressed" [ -z "$(find "$root/usr/share/doc/tapegrad/"*/ -name '*.gz')" ]

if [ -z "$root" ]; then
    check "dpkg --purge" dpkg --purge $packages
    stays() { ours | diff "$directory/before" -; }
    check "what stays" stays
    check "the loader's cache" [ -z "$(/sbin/ldconfig -p | grep libtapegrad)" ]
fi
report
