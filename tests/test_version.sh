#!/usr/bin/env bash
# The version's one source is TAPEGRAD_VERSION in tensor/tensor.h: what else names the version agrees with it.
. "$(dirname "$0")/check.sh"
version=$(sed -n 's/^#define TAPEGRAD_VERSION "\([^"]*\)".*/\1/p' tensor/tensor.h)
check "tensor/tensor.h: TAPEGRAD_VERSION is \"$version\", expected three numbers" grep -qxE '[0-9]+\.[0-9]+\.[0-9]+' <(echo "$version")

# names FILE PATTERN [VERSION]: the first line that has the pattern names the version there, if the tree has the file
names() {
    local found version=${3:-$version}
    [ -e "$1" ] || return
    count=$((count + 1))
    found=$(sed -nE "s/$2/\\1/p" "$1" | head -n 1)
    [ "$found" = "$version" ] || fail "$1 names version \"$found\", expected \"$version\" as TAPEGRAD_VERSION in tensor/tensor.h"
}
names CITATION.cff '^version: (.*)'
names CHANGELOG.md '^## ([^, ]*).*'
names docs/building.md '.*tapegrad-([0-9.]*)[.]zip.*'
names docs/building.md '.*find_package\(tapegrad ([0-9.]*) .*' "${version%.*}"
names docs/building.md '.*libtapegrad\{([0-9.]*),-dev\}.*' "${version%.*}"
names debian/control '^Package: libtapegrad([0-9.]*)$' "${version%.*}"
names debian/changelog '^tapegrad \(([^-)]*).*'

# That another version would be found.
printf 'version: 9.9.9\n' >"$directory/other"
count=$((count + 1))
(names "$directory/other" '^version: (.*)') | grep -q 'names version "9.9.9", expected' || fail "another version is not found"
report
