#!/usr/bin/env bash
# The Makefile's choices for CUDA, with stubs of nvcc and nvidia-smi, and for other processors, with a
# stub of a compiler; and the choice of a test by name.
. "$(dirname "$0")/check.sh"
unset MAKEFLAGS MAKEOVERRIDES MFLAGS MAKELEVEL ARCH CUDA NVCC_ARCHS WERROR # of the make that runs this test
settings=$directory/build/settings choose='to choose: CUDA=yes|no|host NVCC_ARCHS="80 90"'
mkdir -p "$directory/bin"
printf '#!/bin/sh\nexit 1\n' >"$directory/bin/nvcc"

# gpus [COMPUTE_CAPABILITY...]: the GPUs that nvidia-smi reports; none: as without a driver
gpus() {
    { echo '#!/bin/sh' && if [ $# -gt 0 ]; then printf 'echo %s\n' "$@"; else
        echo 'echo NVIDIA-SMI has failed; exit 9'; fi; } >"$directory/bin/nvidia-smi"
}

# builds OUTPUT SETTINGS [VARIABLE=VALUE...]: make prints OUTPUT and writes SETTINGS
builds() {
    local printed written
    printed=$(PATH="$directory/bin:$PATH" \
        make --no-print-directory CUDA_HOME="$directory" BUILD="$directory/build" "${@:3}" "$settings" 2>&1)
    written=$(sed 's/ REAL=.*//' "$settings")
    count=$((count + 2))
    [ "$printed" = "$1" ] || fail "${*:3} printed \"$printed\", expected \"$1\""
    [ "$written" = "$2" ] || fail "${*:3} is \"$written\", expected \"$2\""
}

chmod +x "$directory/bin/nvcc" && gpus && chmod +x "$directory/bin/nvidia-smi"
builds "CUDA=no since there is no GPU of compute capability 8.0 or later; $choose" 'CUDA=no'
builds '' 'CUDA=no'
gpus 9.0
builds "CUDA=yes NVCC_ARCHS=\"90\"; $choose" 'CUDA=yes NVCC_ARCHS="90"'
builds '' 'CUDA=yes NVCC_ARCHS="90"'
builds '' 'CUDA=no' CUDA=no
gpus 10.0 8.6 9.0 8.6 7.5
builds "CUDA=yes NVCC_ARCHS=\"86 90 100\"; $choose" 'CUDA=yes NVCC_ARCHS="86 90 100"'
builds '' 'CUDA=yes NVCC_ARCHS="90"' CUDA=yes NVCC_ARCHS=90
gpus 7.5
builds "CUDA=no since there is no GPU of compute capability 8.0 or later; $choose" 'CUDA=no'
builds '' 'CUDA=yes NVCC_ARCHS="80 90"' CUDA=yes
rm "$directory/bin/nvcc"
builds "CUDA=no since there is no nvcc; $choose" 'CUDA=no'
builds "cuda.mk:$(grep -n 'needs nvcc' cuda.mk | cut -d: -f1): *** CUDA=yes needs nvcc, on PATH or in /usr/local/cuda.  Stop." \
    'CUDA=no' CUDA=yes

# For another processor the tools are the compiler's, and code is built for any processor of its kind.
cat >"$directory/bin/arm-gcc" <<'END'
#!/bin/sh
case $1 in
-dumpmachine) echo aarch64-linux-gnu ;;
-print-prog-name=*) echo "/arm/${1#*=}" ;;
*) eval ": >\"\${$#}\"" ;; # the object
esac
END
chmod +x "$directory/bin/arm-gcc"
# has TEXT GOAL VARIABLE=VALUE...: what make would run for GOAL has TEXT; lacks: has no TEXT
has() { expect 1 "$@"; }
lacks() { expect 0 "$@"; }
expect() { # 0|1 TEXT GOAL VARIABLE=VALUE...
    count=$((count + 1))
    [ "$(make --no-print-directory -n CUDA=no BUILD="$directory/other" "${@:3}" 2>&1 | grep -m 1 -cF -e "$2")" = "$1" ] ||
        fail "make ${*:3}: lines with $2, expected $1"
}
arm=CC=$directory/bin/arm-gcc
has "-march=armv8-a " library "$arm"
has "-march=armv8.2-a " library "$arm" ARCH=armv8.2-a
has "/arm/ld -r" library "$arm"
has "/arm/objcopy --localize-hidden" library "$arm"
has "/arm/ar rcs" library "$arm"
has "ARCH=armv8-a install-files" install "$arm"
has "-march=native " library
has "-Werror " library WERROR=yes
lacks "-Werror " library # newer compilers have new warnings
[ "$(uname -m)" != x86_64 ] || has "ARCH=x86-64-v3 install-files" install

# Packagers' variables reach every compilation and every link, and choose the tools.
lines() { # PATTERN TEXT: of the commands of make all, those with PATTERN have TEXT
    count=$((count + 1))
    local found=$(grep -e "$1" <<<"$planned")
    [ -n "$found" ] && ! grep -vF -e "$2" <<<"$found" || fail "make all: a command with $1 lacks $2"
}
planned=$(make --no-print-directory -n CUDA=no BUILD="$directory/other" CPPFLAGS=-DOWN_CPP CFLAGS=-DOWN_C LDFLAGS=-Wl,-z,own \
    AR=own-ar LD=own-ld OBJCOPY=own-objcopy NM=own-nm all 2>&1)
lines ' -MMD ' ' -DOWN_CPP -DOWN_C '
lines ' -lm' ' -Wl,-z,own '
lines ' -shared ' ' -Wl,-z,own '
lines ' -r ' 'own-ld -r '
lines ' rcs ' 'own-ar rcs '
lines ' --localize-hidden ' 'own-objcopy '
lines ' --defined-only ' 'own-nm '

# An object is compiled again where a setting of the compiler has changed, and only there.
compiles() { # 0|1 VARIABLE=VALUE...
    count=$((count + 1))
    [ "$(make --no-print-directory CUDA=no BUILD="$directory/other" "${@:2}" "$directory/other/tensor/shape.o" 2>&1)" = \
        "$([ "$1" = 0 ] || echo '  compile tensor/shape.c')" ] || fail "make ${*:2}: does not compile $1 object"
}
cp "$directory/bin/arm-gcc" "$directory/bin/other-gcc"
compiles 1 "$arm"
compiles 0 "$arm"
set -- "$arm"
for setting in CFLAGS='-O0 -g' CPPFLAGS=-DOWN LDFLAGS=-Lown ARCH=armv8.2-a SANITIZE=-fsanitize=address CC="$directory/bin/other-gcc"; do
    set -- "$@" "$setting"
    compiles 1 "$@"
    compiles 0 "$@"
done

# A misspelled TEST is not a success, with any test program that is built.
count=$((count + 1))
program=$(ls "${TAPEGRAD_BUILD:-build}"/tests/test_*.o 2>/dev/null | head -n 1)
program=${program%.o}
expected="${program##*/test_}: TEST=no_such_test: no test has this name; 1"
found=$(TEST=no_such_test "$program" 2>&1; echo "; $?")
[ "${found//$'\n'/}" = "$expected" ] ||
    fail "TEST=no_such_test printed \"$found\", expected \"$expected\""

# A big-endian processor has no build, rather than other files.
count=$((count + 1))
echo '#include "tapegrad.h"' | ${CC:-cc} -U__BYTE_ORDER__ -D__BYTE_ORDER__=__ORDER_BIG_ENDIAN__ -I. -fsyntax-only -x c - 2>&1 |
    grep -q '#error "tapegrad needs a little-endian processor' ||
    fail 'a big-endian processor is not refused'

# A table of kernels has one type: other kernels in it do not compile.
table() { # KERNELS: the status and the error of a table of CellKernels with these
    printf '%s\n' '#include "ext/muon/kernels.h"' '#include "ext/recurrent/kernels.h"' \
        'const CellKernels *const table[KERNEL_TABLES] = { [KERNELS_PLAIN] = &'"$1"' };' >"$directory/table.c"
    make --no-print-directory -n -B CUDA=no BUILD="$directory/other" "$directory/other/ext/recurrent/kernels.o" |
        sed -n "s# -MMD -MP##; s#^\(.*\) -c ext/.*#\1 -fsyntax-only $directory/table.c#p" | bash 2>&1
}
count=$((count + 2))
[ -z "$(table lstm_plain)" ] || fail "a table of kernels does not compile: $(table lstm_plain)"
table muon_plain | grep -q 'error: .*incompatible pointer type' || fail 'a wrong table of kernels compiles'

report
