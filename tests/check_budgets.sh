#!/usr/bin/env bash
# The budgets of CONTRIBUTING.md: lines outside cpu/ and cuda/, and of README's reading path.
set -eu
cd "$(dirname "$0")/.."
core=$(find tensor autograd ops nn optim -name '*.[ch]' -not -path '*/cpu/*' -not -path '*/cuda/*' -exec cat {} + | wc -l)
path=$(sed -n '/^## Reading it/,/^| directory/p' README.md | grep -o '([a-z_/]*\.[ch])' | tr -d '()' | grep -v ops/kernels.h)
lines=$(cat $path | wc -l)
echo "core: $core lines, now at most 18900; reading path: $lines lines in $(wc -w <<<"$path") files, at most 2500"
[ "$core" -le 18900 ] && [ "$lines" -le 2500 ] && [ "$(wc -w <<<"$path")" -eq 10 ]
