#!/usr/bin/env bash
# README's reading path: ten files of at most 2500 lines.
set -eu
cd "$(dirname "$0")/.."
path=$(sed -n '/^## Reading it/,/^| directory/p' README.md | grep -o '([a-z_/]*\.[ch])' | tr -d '()' | grep -v ops/kernels.h)
lines=$(cat $path | wc -l)
echo "reading path: $lines lines in $(wc -w <<<"$path") files, at most 2500"
[ "$lines" -le 2500 ] && [ "$(wc -w <<<"$path")" -eq 10 ]
