#!/usr/bin/env bash
# Tests and measures the CUDA side on a GPU machine that is rented by the minute. The machine has
# gcc, the CUDA toolkit and perhaps PyTorch, but no network and none of the Debian packages that
# `make deps` installs.
#
#   bench/gpu.sh pack [FILE]         on a machine with a network: writes FILE (tapegrad-gpu.tar.gz)
#                                    with the tree (HEAD) and those packages (packages/)
#   tar xzf FILE && cd tapegrad      on the machine with the GPU; then, in this order:
#   bench/gpu.sh prove [DIRECTORY]   build; a smoke test of 20 seconds; all tests; goals of attention,
#                                    the copy task's step and generation; tests and measurements again
#                                    with FLAGS; images drawn, errors by precision
#   bench/gpu.sh check [DIRECTORY]   memcheck; ncu; failed tests again with blocking launches;
#                                    racecheck
#   bench/gpu.sh rivals [DIRECTORY]  flash-linear-attention, fast-transformers and PyTorch, compared
#                                    with float64, then timed at the shapes of the goals and in the
#                                    copy task's step; Figure 1
#   bench/gpu.sh learn [DIRECTORY]   full training of the copy task's paper preset, Figure 2;
#                                    training speed against length; the paper's model of MNIST, or of
#                                    CIFAR-10, until the part ends
#
# A part ends within LIMIT seconds. Each program has a time limit and writes DIRECTORY/PART/NAME.txt
# (first line: the command), NAME.status (the exit status) and perhaps NAME.json or NAME.csv.
# DIRECTORY is gpu-results by default. At the end of a part, and after each of its stages, everything
# except checkpoints is packed into DIRECTORY.tar.gz, the one file to bring home. A later call with the same DIRECTORY runs only programs without a status:
# those interrupted or skipped at the end of the part. Missing tools are reported and their programs
# are skipped. Without gnuplot the data are written, and the command that draws them is printed.
#
#   LIMIT=540          seconds per part
#   AGAIN=yes          rerun the programs that have failed
#   NO_BUILD=yes       use the existing BUILD; otherwise make compiles what is missing or whose
#                      contents have changed since the last build, whatever its modification time
#   BUILD=build        the build directory; the second setting uses its own, build-PDL
#   FLAGS=PDL=yes      make variables of the second setting, off by default
#   NVCC_ARCHS         the architecture (default: of the GPU that nvidia-smi reports)
#   PYTHON=python3     an interpreter with PyTorch
#   FLA_DIR, FT_DIR    clones of flash-linear-attention and fast-transformers
#   MNIST, CIFAR10     the directory of one of these data sets: MNIST's is trained where both are given
#   CUDA=host REHEARSE=yes   rehearsal: tiny sizes and few tests on the emulation,
#                            tests/cuda_on_host
set -u
LIMIT=${LIMIT:-540} REHEARSE=${REHEARSE:-} AGAIN=${AGAIN:-} NO_BUILD=${NO_BUILD:-}
cuda=${CUDA:-yes} python=${PYTHON:-python3} flags=${FLAGS-PDL=yes}

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
has() { command -v "$1" >/dev/null; }

# ----------------------------------------------------------------------------------------- programs
RESERVE=8 # seconds for the archive

# The seconds left for programs of this part.
left() { echo $((LIMIT - RESERVE - SECONDS)); }

# The exit status of the program NAME, or nothing.
status_of() { cat "$results/$1.status" 2>/dev/null; }

# Whether an earlier call has written the program's result.
has_result() { [ -f "$results/$1.status" ] && { [ -z "$AGAIN" ] || [ "$(status_of "$1")" = 0 ]; }; }

# program NAME SECONDS COMMAND...: runs the command, unless it has a result, for at most SECONDS and
# until the part ends. Writes NAME.txt and NAME.status, or NAME.unfinished if the end of the part
# interrupted it.
program() {
    local name=$1 limit=$2 start=$SECONDS status interrupted='' outcome
    shift 2
    has_result "$name" && return
    rm -f "$results/$name.status"
    [ "$limit" -le "$(left)" ] || { limit=$(left) interrupted=yes; }
    : >"$results/$name.unfinished"
    [ "$limit" -ge 2 ] || return # finish reports it
    echo "\$ $*" >"$results/$name.txt"
    timeout --kill-after="${KILL_AFTER:-3}" "$limit" "$@" </dev/null >>"$results/$name.txt" 2>&1 &
    { wait $!; } 2>/dev/null # bash would report a program killed by a signal
    status=$?
    if [ $status -eq 124 ] && [ -n "$interrupted" ]; then
        say "$name: interrupted after $((SECONDS - start)) s by the end of the part"
        return
    fi
    rm "$results/$name.unfinished"
    echo $status >"$results/$name.status"
    outcome=passed
    [ $status -eq 0 ] || outcome="FAILED ($status)"
    [ $status -ne 124 ] || outcome="FAILED, exceeded its limit of $limit s"
    say "$name: $outcome, $((SECONDS - start)) s"
    [ $status -eq 0 ] || tail -n +2 "$results/$name.txt" | tail -n 5 | sed 's/^/        /'
}

# Likewise, and prints the output of the command.
shown() {
    has_result "$1" && return
    program "$@"
    [ "$(status_of "$1")" != 0 ] || tail -n +2 "$results/$1.txt" | tail -n 40
}

# Waits until fewer than N background programs are running.
at_most() { while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do wait -n; done; }

# ------------------------------------------------------------------------ the machine and the build
PACKAGES=(make pkgconf pkgconf-bin libpkgconf3 check libsubunit0 libsubunit-dev libdnnl2
    libdnnl-dev ocl-icd-libopencl1 libpng16-16 libpng-dev zlib1g-dev)

has_header() { echo "#include <$1>" | gcc "${@:2}" -E -x c - >/dev/null 2>&1; }
has_library() {
    echo 'int main(void) { return 0; }' | gcc -x c - "${@:2}" -l"$1" -o /dev/null 2>/dev/null
}

# prepend VARIABLE DIRECTORY
prepend() {
    local old=${!1:-}
    [[ :$old: == *:$2:* ]] || export "$1=$2${old:+:$old}"
}

unpack() { # FILE.deb DIRECTORY
    if has dpkg-deb; then
        dpkg-deb -x "$1" "$2"
    else
        local data format
        data=$(ar t "$1" | grep '^data.tar')
        format=$(sed 's/.*[.]//; s/gz/gzip/; s/zst/zstd/' <<<"$data")
        ar p "$1" "$data" | tar -x --"$format" -C "$2"
    fi
}

# Uses packages/, unpacked into packages/root, for what the system lacks.
use_packages() {
    local header tool file lacks='' root=$PWD/packages/root libraries
    for header in dnnl.h check.h png.h zlib.h; do
        has_header $header || lacks+=" $header"
    done
    for tool in make pkg-config; do has $tool || lacks+=" $tool"; done
    [ -n "$lacks" ] || return 0
    if ! ls packages/*.deb >/dev/null 2>&1; then
        say "missing:$lacks; run \`bench/gpu.sh pack\` on a machine with a network"
        return
    fi
    if [ ! -f "$root/complete" ]; then
        mkdir -p "$root"
        for file in packages/*.deb; do unpack "$file" "$root" || return; done
        : >"$root/complete"
    fi
    libraries=$(echo "$root"/usr/lib/*-linux-gnu*)
    prepend PATH "$root/usr/bin"
    prepend C_INCLUDE_PATH "$root/usr/include:$(echo "$root"/usr/include/*-linux-gnu*)"
    prepend LIBRARY_PATH "$libraries"
    prepend LD_LIBRARY_PATH "$libraries"
    prepend PKG_CONFIG_PATH "$libraries/pkgconfig"
    export PKG_CONFIG_SYSROOT_DIR=$root
    say "missing on this system:$lacks; using packages/"
}

# Some toolkits lack cuBLAS. PyTorch's wheels contain its headers and libraries, but not lib*.so.
use_toolkit() {
    local home header library found lacks=''
    has nvcc || prepend PATH /usr/local/cuda/bin
    has nvcc || { say "nvcc was not found: CUDA sources cannot be compiled" && return; }
    home=$(command -v nvcc)
    home=${home%/bin/nvcc}
    for header in cublasLt.h cublas_v2.h; do
        has_header $header -I"$home/include" && continue
        found=$(wheels "$header" | head -n 1)
        [ -n "$found" ] || { lacks+=" $header" && continue; }
        prepend C_INCLUDE_PATH "${found%/*}"
        prepend CPLUS_INCLUDE_PATH "${found%/*}"
        say "$header: not in $home, using ${found%/*}"
    done
    for library in cudart cublasLt cublas; do
        has_library $library -L"$home/lib64" && continue
        found=$(wheels "lib$library.so.*" | head -n 1)
        [ -n "$found" ] || { lacks+=" lib$library.so" && continue; }
        mkdir -p "$build/toolkit"
        ln -sf "$found" "$build/toolkit/lib$library.so"
        prepend LIBRARY_PATH "$(realpath "$build/toolkit")"
        prepend LD_LIBRARY_PATH "${found%/*}"
        say "lib$library.so: not in $home/lib64, using ${found%/*}"
    done
    [ -z "$lacks" ] || say "missing in $home and in PyTorch's wheels:$lacks; the build will fail"
}

wheels() { # NAME: the files of this name in the interpreter's packages nvidia.*
    "$python" -c 'import sys; print(*[p for p in sys.path if p], sep="\n")' 2>/dev/null |
        while read -r path; do find "$path/nvidia" -name "$1" 2>/dev/null; done
}

# The variables of a build and the checksums of all files that it reads.
checksums() {
    echo "$*"
    find Makefile *.mk tapegrad.h extend.h tensor autograd ops nn optim ext bench examples tests -type f \
        \( -name Makefile -o -name '*.mk' -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) \
        -print0 | sort -z | xargs -0 sha256sum
}

# compile DIRECTORY SECONDS TARGETS [VARIABLE=VALUE...]: compares contents, not times. Files are old
# for make (-o) if they have not changed since the last build, else new (-W). Returns whether there
# is a library.
compile() {
    local directory=$1 limit=$2 targets variables known=() file status
    local log=$results/build-${1##*/}.txt
    read -ra targets <<<"$3"
    variables=(CUDA="$cuda" WARNINGS=-w NVCC_WARNINGS= "${architectures[@]}" "${@:4}")
    if [ -n "$NO_BUILD" ] && [ -f "$directory/libtapegrad.a" ]; then return; fi
    mkdir -p "$directory"
    checksums "${variables[@]}" "${targets[@]}" >"$directory/sources.new"
    # sources: the checksums that the directory's objects were compiled from; complete: all targets
    # were made.
    [ -f "$directory/sources" ] || [ -d "$directory/tensor" ] ||
        cp "$directory/sources.new" "$directory/sources"
    if [ -f "$directory/sources" ]; then
        [ -f "$directory/complete" ] && cmp -s "$directory/sources"{,.new} && return
        while read -r file; do known+=(-o "$file"); done < <(comm -12 <(sort "$directory/sources") \
            <(sort "$directory/sources.new") | sed -n 's/^[0-9a-f]\{64\}  //p')
        while read -r file; do known+=(-W "$file"); done < <(comm -13 <(sort "$directory/sources") \
            <(sort "$directory/sources.new") | sed -n 's/^[0-9a-f]\{64\}  //p')
        [[ " ${known[*]} " == *' -W Makefile '* || " ${known[*]} " == *' -W cuda.mk '* ]] ||
            known+=(-o "$directory/settings")
        cmp -s <(head -n 1 "$directory/sources") <(head -n 1 "$directory/sources.new") || known=(-B)
    fi
    rm -f "$directory/complete"
    say "compiling into $directory"
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    timeout --kill-after=5 "$limit" make --keep-going -j"$(nproc)" BUILD="$directory" \
        "${variables[@]}" "${known[@]}" "${targets[@]/#+/$directory/}" >"$log" 2>&1 &
    wait $!
    status=$?
    if [ $status -eq 0 ]; then
        mv "$directory/sources.new" "$directory/sources"
        : >"$directory/complete"
        say "compiled into $directory"
    elif [ $status -eq 124 ]; then
        say "make was interrupted after $limit s; the next call continues in $directory"
    else
        say "make failed in $directory:"
        grep -E 'error:|error #|fatal|undefined|No such|\*\*\*' "$log" | head -n 20
    fi
    [ -f "$directory/libtapegrad.a" ]
}

# But test_speech, which needs libraries that are not packed, and no GPU.
test_programs() { basename -s .c tests/test_*.c ext/*/tests/test_*.c | grep -vx test_speech; }

# Detects the machine's tools, then compiles the programs of all parts.
prepare() {
    use_packages
    architectures=()
    if [ "$cuda" = yes ]; then
        use_toolkit
        local architecture=${NVCC_ARCHS:-}
        if has nvidia-smi; then
            nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv |
                tee "$results/gpu.txt"
            [ -n "$architecture" ] ||
                architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader |
                    head -n 1 | tr -d '. ')
        else
            say "nvidia-smi was not found: compiling for the Makefile's architectures"
        fi
        [ -z "$architecture" ] || architectures=(NVCC_ARCHS="$architecture")
    fi
    { nvcc --version && gcc --version && "$python" --version; } >"$results/versions.txt" 2>&1
    compile "$build" 400 "all bench-programs $(test_programs | sed 's,^,+tests/,' | tr '\n' ' ')" ||
        { say "there is no library: the part ends here" && finish 1; }
}

# -------------------------------------------------------------------------------------------- prove
# The most important tests, run first.
FIRST_TESTS=(cuda attention replay generation products)
FLAG_TESTS=(attention softmax_attention lsh_attention generation sampling replay rows cuda)

run_tests() { # BUILD SUFFIX NAME...: eight at a time
    local test
    for test in "${@:3}"; do
        at_most 8
        program "test_$test$2" 150 env DEVICE=cuda TAPEGRAD_BUILD="$1" OMP_NUM_THREADS=2 \
            OMP_WAIT_POLICY=passive "$1/tests/test_$test" &
    done
}

# Whether kernels run at all: what is broken shows before the tests, which take minutes.
smoke() {
    program smoke_test 20 env DEVICE=cuda TAPEGRAD_BUILD="$build" "$build/tests/test_${FIRST_TESTS[0]}" &
    program smoke_goals 20 "$build/bench/attention" --goals --quick --seconds 0 --device cuda &
    wait
    archive
}

# by_precision shown|program BUILD NAME SUFFIX SECONDS: BUILD/bench/NAME once per precision.
by_precision() {
    local precision result
    for precision in "${precisions[@]}"; do
        [ "$3 $precision" != 'generation bf16' ] || continue # decode steps on CUDA have no bf16
        result=$3_$precision$4
        "$1" "$result" "$5" "$2/bench/$3" "${device[@]}" --precision "$precision" \
            --json "$results/$result.json"
    done
}

measure() { # BUILD SUFFIX: the goals of attention, the copy task's step, generation
    shown "goals$2" 150 "$1/bench/attention" --goals --device cuda "${quick[@]}" \
        --json "$results/goals$2.json"
    by_precision shown "$1" copy_step "$2" 40
    by_precision shown "$1" generation "$2" 60
}

draw() { # METHOD IMAGES [PRESET]
    local preset=${3:-paper} name
    [ "$preset" = paper ] && name=mnist_$1 || name=cifar10_$1
    shown "$name" 40 "$build/programs/images" benchmark --device cuda --precision tf32 \
        --preset "$preset" --method "$1" --batch "$2" --csv "$results/$name.csv" "${few_pixels[@]}"
}

part_prove() {
    local all precision flagged programs method
    mapfile -t all < <(test_programs | sed 's/^test_//' |
        grep -vxF "$(printf '%s\n' "${FIRST_TESTS[@]}")")
    [ -z "$REHEARSE" ] || { FIRST_TESTS=(replay) all=(layout optim) FLAG_TESTS=(replay); }
    known_flags
    flagged=$build-$(tr -cs 'A-Za-z0-9_\n' - <<<"${flags//=yes/}")
    smoke
    if [ -n "$flags" ]; then # in parallel to the tests, most of which use little CPU time
        programs=$(printf '+tests/test_%s ' "${FLAG_TESTS[@]}")
        programs+='library +bench/attention +bench/copy_step +bench/generation'
        # shellcheck disable=SC2086 # several variables
        compile "$flagged" 200 "$programs" $flags &
    fi
    run_tests "$build" '' "${FIRST_TESTS[@]}" "${all[@]}"
    wait
    archive
    measure "$build" ''
    archive
    if [ -n "$flags" ] && [ -f "$flagged/libtapegrad.a" ]; then
        run_tests "$flagged" -flags "${FLAG_TESTS[@]}"
        wait
        measure "$flagged" -flags
        archive
    fi
    draw linear "${batches[0]}"
    shown precision 40 "$build/bench/precision" --device cuda
    for precision in "${precisions[@]}"; do
        shown "copy_step_eager_$precision" 40 "$build/bench/copy_step" "${device[@]}" --eager \
            --precision "$precision"
    done
    shown generation_eager 40 "$build/bench/generation" "${device[@]}" --eager --precision float32
    draw stateful-softmax "${batches[1]}"
    draw softmax "${batches[2]}"
    draw lsh-1 "${batches[2]}"
    draw lsh-4 "${batches[2]}"
    draw linear "${batches[0]}" cifar10-paper
    for method in stateful-softmax softmax lsh-1 lsh-4; do draw $method "${batches[2]}" cifar10-paper; done
    by_precision program "$build" operations '' 60
    if [ "$cuda" = yes ]; then
        program test_curand 60 sh -c "nvcc -std=c++17 -arch=native -I. \
            tests/test_curand.cu -o $build/tests/test_curand && $build/tests/test_curand"
    fi
    program test_figures.sh 60 env TAPEGRAD_BUILD="$build" CUDA="$cuda" tests/test_figures.sh
}

# Removes from flags the variables that the Makefile does not have.
known_flags() {
    local flag found=''
    for flag in $flags; do
        if grep -q "^${flag%%=*}\\b" Makefile cuda.mk; then
            found+="${found:+ }$flag"
        else
            say "the Makefile has no variable ${flag%%=*}"
        fi
    done
    flags=$found
    [ -n "$flags" ] || say "no second setting is measured: FLAGS is empty"
}

# -------------------------------------------------------------------------------------------- check
sanitize() { # TOOL SECONDS NAME...: six at a time
    local tool=$1 test options=()
    # One test allocates more memory than available, which memcheck shall not report.
    [ "$tool" != memcheck ] || options=(--report-api-errors no)
    [ "$tool" != racecheck ] || options=(--racecheck-detect-level error)
    for test in "${@:3}"; do
        at_most 6
        program "${tool}_$test" "$2" env DEVICE=cuda CK_FORK=no compute-sanitizer --tool "$tool" \
            "${options[@]}" --print-limit 20 --error-exitcode 1 "$build/tests/test_$test" &
    done
    wait
}

# With blocking launches a fault is reported at the kernel that caused it.
failed_again() {
    local status test
    for status in "$out"/prove/test_*.status; do
        if [ ! -f "$status" ] || [ "$(cat "$status")" = 0 ]; then continue; fi
        test=$(basename "$status" .status)
        at_most 4
        # The first line of the output file is the command.
        read -ra command < <(sed -n '1s/^\$ //p' "${status%.status}.txt")
        program "blocking_$test" 120 env CUDA_LAUNCH_BLOCKING=1 "${command[@]}" &
    done
    wait
}

profile() {
    local goals=("$build/bench/attention" --goals --device cuda --precision bf16 --eager --seconds 0
        "${quick[@]}")
    local ncu=(ncu --set full --clock-control none --kernel-name-base demangled)
    # The first goal with heads of 64 is (8, 8, 4096, 64).
    shown ncu_scan 100 "${ncu[@]}" -k 'regex:mma_.*64' -c 6 --kill yes -fo "$results/ncu_scan" \
        "${goals[@]}"
    [ ! -f "$results/ncu_scan.ncu-rep" ] ||
        program ncu_scan_details 30 ncu --import "$results/ncu_scan.ncu-rep" --page details
    # The first launch of each kernel.
    program ncu_kernels 150 "${ncu[@]}" --kernel-id '::regex:mma_:1' -fo "$results/ncu_kernels" \
        "${goals[@]}"
    [ ! -f "$results/ncu_kernels.ncu-rep" ] ||
        program ncu_kernels_details 30 ncu --import "$results/ncu_kernels.ncu-rep" --page details
}

part_check() {
    local first=(attention products rows generation replay) rest=(cuda softmax_attention
        lsh_attention sampling layout elementwise features optim layers)
    [ -z "$REHEARSE" ] || { first=(replay) rest=(layout); }
    for directory in /usr/local/cuda/{bin,compute-sanitizer} /opt/nvidia/nsight-compute/*; do
        PATH+=:$directory
    done
    has compute-sanitizer || say "compute-sanitizer was not found: skipping memcheck and racecheck"
    has compute-sanitizer && sanitize memcheck 150 "${first[@]}"
    archive
    if has ncu; then profile; else say "ncu was not found: skipping the profiles"; fi
    failed_again
    archive
    has compute-sanitizer || return
    sanitize racecheck 200 "${first[@]}"
    sanitize memcheck 90 "${rest[@]}"
    sanitize racecheck 90 "${rest[@]}"
}

# ------------------------------------------------------------------------------------------- rivals
has_torch() {
    "$python" -c 'import torch' 2>/dev/null ||
        { say "$python has no torch: skipping PyTorch and rivals" && false; }
}

part_rivals() {
    local method methods steps=(quadratic softmax chunked) figure=() torch=''
    has_torch && torch=yes
    if [ -n "$torch" ]; then
        local cache
        cache=$(realpath "$build")/rivals
        export PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 FLA_CACHE_RESULTS=0
        export TRITON_CACHE_DIR=$cache/triton TORCHINDUCTOR_CACHE_DIR=$cache/inductor
        export TORCH_EXTENSIONS_DIR=$cache/extensions
        mkdir -p "$TORCH_EXTENSIONS_DIR"
        read -ra methods < <("$python" bench/peers/goals.py --methods "${peers[@]}")
        # Compile everything first, in parallel and untimed.
        for method in "${methods[@]}"; do
            at_most 8
            program "compare_$method" 170 "$python" bench/peers/goals.py --compare "$method" \
                "${peers[@]}" &
        done
        for method in "${steps[@]}"; do
            at_most 8
            program "compile_$method" 170 "$python" bench/peers/copy_task_step.py \
                --attention "$method" --modes compile --seconds 0 "${peers[@]}" &
        done
        wait
        for method in "${methods[@]}"; do
            if [ "$(status_of "compare_$method")" = 0 ]; then
                program "goals_$method" 100 "$python" bench/peers/goals.py "$method" "${peers[@]}"
            else
                say "goals_$method: skipped, see compare_$method.txt"
            fi
        done
        archive
        [ "$(status_of compare_fla)" != 0 ] || steps+=(fla) # torch.compile does not compile it
        for method in "${steps[@]}"; do
            shown "copy_step_$method" 100 "$python" bench/peers/copy_task_step.py \
                --attention "$method" --seconds 0.5 "${peers[@]}"
        done
        figure=(--python "$python")
    fi
    shown figure1 320 "$build/bench/figure1" "${device[@]}" --total "$(total 250 60)" --limit 30 \
        --output "$results/figure1" "${lengths[@]}" "${figure[@]}"
    [ -z "$torch" ] || program operations 120 "$python" bench/peers/operations.py \
        --program '' --rounds 1 "${peers[@]}"
}

# -------------------------------------------------------------------------------------------- learn
# total SECONDS REST: SECONDS, but at most the seconds left of the part minus REST.
total() {
    local most=$(($(left) - $2))
    [ "$most" -lt "$1" ] || most=$1
    echo $((most > 1 ? most : 1))
}

copy_task() { # NAME OPTION...
    program "copy_task_$1" 240 "$build/programs/copy_task" --preset paper --device cuda \
        --precision tf32 --score-every 10 --log "$results/$1.csv" "${tiny[@]}" "${@:2}"
    [ ! -f "$results/copy_task_$1.status" ] || tail -n 1 "$results/copy_task_$1.txt"
}

part_learn() {
    local logs=$results/logs name
    copy_task linear
    copy_task softmax --attention softmax
    copy_task lsh-4 --attention lsh --rounds 4
    archive
    # The logs of complete runs.
    rm -rf "$logs" && mkdir "$logs"
    for name in linear softmax lsh-4; do
        [ "$(status_of "copy_task_$name")" != 0 ] || cp "$results/$name.csv" "$logs/"
    done
    rm -f "$results/figure2.status" # drawn again: it takes no time
    shown figure2 20 bench/figure2 --logs "$logs" --drop-at 3000 --output "$results/figure2"
    # --limit: the longest sequences of quadratic methods would take the whole part.
    shown training_speed 240 "$build/bench/training_speed" "${device[@]}" "${speed[@]}" --limit 15 \
        --total "$(total 210 20)" \
        --output "$results/training_speed"
    if [ -d "${MNIST:-}" ]; then
        images mnist paper "$MNIST"
    elif [ -d "${CIFAR10:-}" ]; then
        images cifar10 cifar10-paper "$CIFAR10"
    else
        say "neither MNIST nor CIFAR10 is set to the directory of its images: skipping their models"
    fi
}

# Trains until $closing seconds before the end of the part; these are for the checkpoint, the test
# images and the samples. A later call resumes from the checkpoint.
images() { # NAME PRESET DATA
    local saved=$results/$1.safetensors resumed=()
    [ ! -f "$saved" ] || resumed=(--resume "$saved")
    LIMIT=$((LIMIT - closing)) KILL_AFTER=$closing program "$1_train" 1000000 \
        "$build/programs/images" train --preset "$2" --data "$3" --device cuda \
        --precision tf32 --score-every 100 --save "$saved" --log "$results/$1.csv" \
        "${tiny_images[@]}" "${resumed[@]}"
    [ ! -f "$saved" ] || tail -n 1 "$results/$1_train.txt"
    rm -f "$results/$1_sample.status"
    [ ! -f "$saved" ] || program "$1_sample" 20 "$build/programs/images" sample --load "$saved" \
        --data "$3" --device cuda --plot "$results/$1.png"
}

# --------------------------------------------------------------------------------------------- pack
pack() { # FILE
    local package sum
    has apt-get && has git ||
        { echo "bench/gpu.sh pack: needs git and Debian's apt-get" >&2; exit 1; }
    [ -z "$(git status --porcelain --untracked-files=no)" ] ||
        say "uncommitted changes are not packed"
    mkdir -p packages
    for package in "${PACKAGES[@]}"; do
        ls packages/"${package}"_*.deb >/dev/null 2>&1 ||
            (cd packages && apt-get download -q "$package") || exit 1
    done
    git archive --prefix=tapegrad/ --output "$1.tar" HEAD &&
        tar --append --file "$1.tar" --transform 's,^,tapegrad/,' packages/*.deb &&
        gzip --force "$1.tar" && mv "$1.tar.gz" "$1" || exit 1
    sum=$(($(stat -c %s "$1") / 1000000))
    say "$1: $sum MB, commit $(git rev-parse --short HEAD)"
    [ "$sum" -lt 40 ] || { echo "bench/gpu.sh pack: more than 40 MB" >&2; exit 1; }
}

# --------------------------------------------------------------------------------------------- main
# Called while no program runs.
archive() {
    tar -czf "$out.tar.gz.new" --exclude='*.safetensors' -C "${out%/*}" "${out##*/}" &&
        mv "$out.tar.gz.new" "$out.tar.gz"
}

# Reports the results of a part and writes the archive. Exits with STATUS, or with 1 if a program
# failed or is left for the next call.
finish() { # [STATUS]
    local file passed=0 failed='' unfinished=''
    trap - INT TERM
    for file in "$results"/*.status; do
        [ -f "$file" ] || continue
        if [ "$(cat "$file")" = 0 ]; then
            passed=$((passed + 1))
        else
            failed+=" $(basename "$file" .status)"
        fi
    done
    for file in "$results"/*.unfinished; do
        [ ! -f "$file" ] || unfinished+=" $(basename "$file" .unfinished)"
    done
    say "$part: $passed passed, including earlier calls;${failed:+ FAILED:$failed;}" \
        "for the next call:${unfinished:- nothing}"
    archive && say "all results: $out.tar.gz"
    [ -z "$failed$unfinished" ] || exit 1
    exit "${1:-0}"
}

stop() {
    jobs -p | xargs -r kill 2>/dev/null
    wait
    say "stopped"
    finish 130
}

quick=() device=(--device cuda) lengths=() peers=(--device cuda) tiny=() tiny_images=()
speed=(--precision bf16)
precisions=(tf32 bf16 float32) batches=(10000 1000 100) few_pixels=()
closing=40 # seconds, see images
if [ -n "$REHEARSE" ]; then
    quick=(--quick --seconds 0)
    device=(--device cpu --seconds 0) precisions=(float32)
    lengths=(--longest 1024 --tokens 1024)
    peers=(--device cpu --tiny --seconds 0 --precisions float32)
    tiny=(--steps 20 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 4 --length 16)
    tiny_images=(--layers 1 --heads 2 --head-dim 8 --feed-forward 16 --test-images 2
        --evaluate-images 2)
    speed=(--longest 512)
    batches=(2 2 2) few_pixels=(--pixels 2)
    closing=10
fi

root=$(realpath "$(dirname "$0")/..")
part=${1:-} build=${BUILD:-build}
case $part in
pack)
    file=$(realpath -m "${2:-tapegrad-gpu.tar.gz}")
    cd "$root" && pack "$file"
    ;;
prove | check | rivals | learn)
    out=$(realpath -m "${2:-$root/gpu-results}") results=$out/$part
    cd "$root" && mkdir -p "$results" || exit 2
    rm -f "$results"/*.unfinished
    trap stop INT TERM
    prepare
    "part_$part"
    finish
    ;;
*) usage >&2 && exit 2 ;;
esac
