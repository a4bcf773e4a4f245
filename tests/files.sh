#!/bin/sh
# The files of the tree by patterns of names: those that git tracks, and new ones that it does not ignore. In an
# unpacked archive, which has no .git, all but those of builds.
#   tests/files.sh PATTERN...
cd "$(dirname "$0")/.." || exit 2
[ ! -e .git ] || exec git ls-files -co --exclude-standard "$@"
for pattern in "$@"; do
    find . -name "$pattern" -type f -not -path './build/*' -not -path './build-*/*' -not -path './packages/*'
done | sed 's,^\./,,' | LC_ALL=C sort
