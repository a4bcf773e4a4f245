#!/usr/bin/env bash
# Proves and measures the CUDA side on a machine with a GPU that is rented by the minute. It has gcc, the
# CUDA toolkit and perhaps PyTorch, but no network and none of the Debian packages that `make deps` installs.
#
#   bench/gpu.sh pack [FILE]         on a machine with a network: writes FILE (tapegrad-gpu.tar.gz), which holds
#                                    the tree (HEAD) and those packages, which go into packages/
#   tar xzf FILE && cd tapegrad      on the machine with the GPU, and then, in this order:
#   bench/gpu.sh prove [DIRECTORY]   the build; all tests; attention's goals, the copy task's step and generation;
#                                    tests and figures again with FLAGS; MNIST images, errors by precision
#   bench/gpu.sh check [DIRECTORY]   memcheck; failed tests again with blocking launches; ncu; racecheck
#   bench/gpu.sh rivals [DIRECTORY]  flash-linear-attention, fast-transformers and PyTorch at the goals' shapes
#                                    and in the copy task's step, after a comparison with float64; Figure 1
#   bench/gpu.sh learn [DIRECTORY]   the copy task's paper preset to its end and Figure 2; training speed
#                                    against length; MNIST's paper preset for the rest of the time
#
# A part ends by itself within LIMIT seconds. For each program it writes DIRECTORY/PART/NAME.txt, with the
# command in the first line, NAME.status, the exit status, and perhaps NAME.json or NAME.csv; DIRECTORY is
# gpu-results by default. Then all of it but checkpoints goes to DIRECTORY.tar.gz. Each program has a limit
# of its own. A later call with the same DIRECTORY runs only programs that have no status: those that the
# end of the part has interrupted or left out. Missing tools are reported and their programs left out.
# Without gnuplot the numbers are written, and a sentence says which command draws them elsewhere.
#
#   LIMIT=540          seconds of a part
#   AGAIN=yes          run the programs again that have failed
#   NO_BUILD=yes       use what BUILD has; otherwise make compiles what is missing or has changed by content
#                      since the last build: the time of a file that was copied again does not matter
#   BUILD=build        where to build; the second setting goes to a directory of its own, build-PDL-FAST_EXP
#   FLAGS='PDL=yes FAST_EXP=yes'   make variables of the second setting, which is off by default
#   NVCC_ARCHS         the architecture (by default that of the GPU that nvidia-smi reports)
#   PYTHON=python3     the interpreter that has PyTorch
#   FLA_DIR, FT_DIR    clones of flash-linear-attention and fast-transformers
#   MNIST              the directory of MNIST's data
#   CUDA=host REHEARSE=yes   the rehearsal: tiny sizes, few tests, on the emulation of tests/cuda_on_host
set -u
LIMIT=${LIMIT:-540} REHEARSE=${REHEARSE:-} AGAIN=${AGAIN:-} NO_BUILD=${NO_BUILD:-}
cuda=${CUDA:-yes} python=${PYTHON:-python3} flags=${FLAGS-PDL=yes FAST_EXP=yes}

usage() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
has() { command -v "$1" >/dev/null; }

# --------------------------------------------------------------------------------------------- programs
RESERVE=8 # seconds for the archive

# Seconds that programs of this part may still take.
left() { echo $((LIMIT - RESERVE - SECONDS)); }

# The exit status that the program NAME has left, or nothing.
status_of() { cat "$results/$1.status" 2>/dev/null; }

# Whether an earlier call has left the program's result.
stands() { [ -f "$results/$1.status" ] && { [ -z "$AGAIN" ] || [ "$(status_of "$1")" = 0 ]; }; }

# program NAME SECONDS COMMAND...: runs the command within SECONDS and within the part, unless its result
# stands. Writes NAME.txt and NAME.status, or NAME.unfinished where the part's end has interrupted it.
program() {
    local name=$1 limit=$2 start=$SECONDS status interrupted='' outcome
    shift 2
    stands "$name" && return
    rm -f "$results/$name.status"
    [ "$limit" -le "$(left)" ] || { limit=$(left) interrupted=yes; }
    : >"$results/$name.unfinished"
    [ "$limit" -ge 2 ] || return # finish names it
    echo "\$ $*" >"$results/$name.txt"
    timeout --kill-after="${KILL_AFTER:-3}" "$limit" "$@" </dev/null >>"$results/$name.txt" 2>&1 &
    { wait $!; } 2>/dev/null # which would report a program that a signal has ended
    status=$?
    if [ $status -eq 124 ] && [ -n "$interrupted" ]; then
        say "$name: interrupted after $((SECONDS - start)) s by the end of the part"
        return
    fi
    rm "$results/$name.unfinished"
    echo $status >"$results/$name.status"
    outcome=passed
    [ $status -eq 0 ] || outcome="FAILED ($status)"
    [ $status -ne 124 ] || outcome="FAILED, stopped after its limit of $limit s"
    say "$name: $outcome, $((SECONDS - start)) s"
    [ $status -eq 0 ] || tail -n +2 "$results/$name.txt" | tail -n 5 | sed 's/^/        /'
}

# The same, and shows what the command has printed.
shown() {
    stands "$1" && return
    program "$@"
    [ "$(status_of "$1")" != 0 ] || tail -n +2 "$results/$1.txt" | tail -n 40
}

# Waits until fewer than N programs run in the background.
at_most() { while [ "$(jobs -rp | wc -l)" -ge "$1" ]; do wait -n; done; }

# ------------------------------------------------------------------------------- the machine and the build
PACKAGES=(make pkgconf pkgconf-bin libpkgconf3 check libsubunit0 libsubunit-dev libcjson1 libcjson-dev libdnnl2
    libdnnl-dev ocl-icd-libopencl1 libpng16-16 libpng-dev zlib1g-dev)

has_header() { echo "#include <$1>" | gcc "${@:2}" -E -x c - >/dev/null 2>&1; }
has_library() { echo 'int main(void) { return 0; }' | gcc -x c - "${@:2}" -l"$1" -o /dev/null 2>/dev/null; }

# prepend VARIABLE DIRECTORY
prepend() {
    local old=${!1:-}
    [[ :$old: == *:$2:* ]] || export "$1=$2${old:+:$old}"
}

unpack() { # FILE.deb DIRECTORY
    if has dpkg-deb; then
        dpkg-deb -x "$1" "$2"
    else
        local data
        data=$(ar t "$1" | grep '^data.tar')
        ar p "$1" "$data" | tar -x --"$(sed 's/.*[.]//; s/gz/gzip/; s/zst/zstd/' <<<"$data")" -C "$2"
    fi
}

# The packages in packages/ are used where the system lacks one, from a directory of their own.
use_packages() {
    local header tool file lacks='' root=$PWD/packages/root libraries
    for header in dnnl.h cjson/cJSON.h check.h png.h zlib.h; do has_header $header || lacks+=" $header"; done
    for tool in make pkg-config; do has $tool || lacks+=" $tool"; done
    [ -n "$lacks" ] || return 0
    if ! ls packages/*.deb >/dev/null 2>&1; then
        say "missing here:$lacks; \`bench/gpu.sh pack\` on a machine with a network packs what is needed"
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
    say "missing on this system:$lacks; used from packages/"
}

# Some toolkits lack cuBLAS, which PyTorch's wheels hold: without lib*.so, and with headers beside.
use_toolkit() {
    local home header library found lacks=''
    has nvcc || prepend PATH /usr/local/cuda/bin
    has nvcc || { say "nvcc was not found: nothing of CUDA can be compiled" && return; }
    home=$(command -v nvcc)
    home=${home%/bin/nvcc}
    for header in cublasLt.h cublas_v2.h; do
        has_header $header -I"$home/include" && continue
        found=$(wheels "$header" | head -n 1)
        [ -n "$found" ] || { lacks+=" $header" && continue; }
        prepend C_INCLUDE_PATH "${found%/*}"
        prepend CPLUS_INCLUDE_PATH "${found%/*}"
        say "$header: not in $home, used from ${found%/*}"
    done
    for library in cudart cublasLt cublas; do
        has_library $library -L"$home/lib64" && continue
        found=$(wheels "lib$library.so.*" | head -n 1)
        [ -n "$found" ] || { lacks+=" lib$library.so" && continue; }
        mkdir -p "$build/toolkit"
        ln -sf "$found" "$build/toolkit/lib$library.so"
        prepend LIBRARY_PATH "$(realpath "$build/toolkit")"
        prepend LD_LIBRARY_PATH "${found%/*}"
        say "lib$library.so: not in $home/lib64, used from ${found%/*}"
    done
    [ -z "$lacks" ] || say "missing in $home and in PyTorch's wheels:$lacks; the build will fail"
}

wheels() { # NAME: the files of this name in the packages nvidia.* of the interpreter
    "$python" -c 'import sys; print(*[p for p in sys.path if p], sep="\n")' 2>/dev/null |
        while read -r path; do find "$path/nvidia" -name "$1" 2>/dev/null; done
}

# The checksum of every file that a build reads, and the variables that it was made with.
checksums() {
    echo "$*"
    find Makefile tapegrad.h tensor autograd ops nn optim bench examples tests -type f \
        \( -name Makefile -o -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' \) -print0 |
        sort -z | xargs -0 sha256sum
}

# compile DIRECTORY SECONDS TARGETS [VARIABLE=VALUE...]: by contents, not by times. What has not changed
# since the last build is old for make (-o), what has is new (-W). Returns whether there is a library.
compile() {
    local directory=$1 limit=$2 targets variables known=() file status log=$results/build-${1##*/}.txt
    read -ra targets <<<"$3"
    variables=(CUDA="$cuda" WARNINGS=-w NVCC_WARNINGS= "${architectures[@]}" "${@:4}")
    if [ -n "$NO_BUILD" ] && [ -f "$directory/libtapegrad.a" ]; then return; fi
    mkdir -p "$directory"
    checksums "${variables[@]}" "${targets[@]}" >"$directory/sources.new"
    # sources: what the objects in the directory were compiled from; complete: all targets were made.
    [ -f "$directory/sources" ] || [ -d "$directory/tensor" ] || cp "$directory/sources.new" "$directory/sources"
    if [ -f "$directory/sources" ]; then
        [ -f "$directory/complete" ] && cmp -s "$directory/sources" "$directory/sources.new" && return
        while read -r file; do known+=(-o "$file"); done < <(comm -12 <(sort "$directory/sources") \
            <(sort "$directory/sources.new") | sed -n 's/^[0-9a-f]\{64\}  //p')
        while read -r file; do known+=(-W "$file"); done < <(comm -13 <(sort "$directory/sources") \
            <(sort "$directory/sources.new") | sed -n 's/^[0-9a-f]\{64\}  //p')
        [[ " ${known[*]} " == *' -W Makefile '* ]] || known+=(-o "$directory/include/tensor/config.h")
        [ "$(head -n 1 "$directory/sources")" = "$(head -n 1 "$directory/sources.new")" ] || known=(-B)
    fi
    rm -f "$directory/complete"
    say "compiling into $directory"
    [ "$limit" -lt "$(left)" ] || limit=$(left)
    timeout --kill-after=5 "$limit" make --keep-going -j"$(nproc)" BUILD="$directory" "${variables[@]}" \
        "${known[@]}" "${targets[@]/#+/$directory/}" >"$log" 2>&1 &
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

test_programs() { local file; for file in tests/test_*.c; do basename "$file" .c; done; }

# Looks at the machine, then compiles what the parts run.
prepare() {
    use_packages
    architectures=()
    if [ "$cuda" = yes ]; then
        use_toolkit
        local architecture=${NVCC_ARCHS:-}
        if has nvidia-smi; then
            nvidia-smi --query-gpu=name,driver_version,memory.total,compute_cap --format=csv | tee "$results/gpu.txt"
            [ -n "$architecture" ] || architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader |
                head -n 1 | tr -d '. ')
        else
            say "nvidia-smi was not found: compiled for the Makefile's architectures"
        fi
        [ -z "$architecture" ] || architectures=(NVCC_ARCHS="$architecture")
    fi
    { nvcc --version && gcc --version && "$python" --version; } >"$results/versions.txt" 2>&1
    compile "$build" 400 "all bench-programs $(test_programs | sed 's,^,+tests/,' | tr '\n' ' ')" ||
        { say "there is no library to run: the part ends here" && finish 1; }
}

# ------------------------------------------------------------------------------------------------ prove
# Worth first.
FIRST_TESTS=(attention cuda replay generation products)
FLAG_TESTS=(attention softmax_attention lsh_attention generation sampling replay rows cuda)

run_tests() { # BUILD SUFFIX NAME...: eight at a time
    local test
    for test in "${@:3}"; do
        at_most 8
        program "test_$test$2" 90 env DEVICE=cuda TAPEGRAD_BUILD="$1" OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive \
            "$1/tests/test_$test" &
    done
}

measure() { # BUILD SUFFIX: what the goals are about
    local precision
    shown "goals$2" 150 "$1/bench/attention" --goals --device cuda "${quick[@]}" --json "$results/goals$2.json"
    for precision in "${precisions[@]}"; do
        shown "copy_step_$precision$2" 40 "$1/bench/copy_step" "${device[@]}" --precision "$precision" \
            --json "$results/copy_step_$precision$2.json"
    done
    for precision in "${precisions[@]}"; do
        [ "$precision" = bf16 ] && continue # there is no such step
        shown "generation_$precision$2" 60 "$1/bench/generation" "${device[@]}" --precision "$precision" \
            --json "$results/generation_$precision$2.json"
    done
}

draw() { # METHOD IMAGES
    shown "mnist_$1" 40 "$build/examples/mnist" benchmark --device cuda --precision tf32 --method "$1" \
        --batch "$2" --csv "$results/mnist_$1.csv" "${few_pixels[@]}"
}

part_prove() {
    local all precision flagged programs
    mapfile -t all < <(test_programs | sed 's/^test_//' | grep -vxF "$(printf '%s\n' "${FIRST_TESTS[@]}")")
    [ -z "$REHEARSE" ] || { FIRST_TESTS=(replay) all=(layout optim) FLAG_TESTS=(replay); }
    known_flags
    flagged=$build-$(tr -cs 'A-Za-z0-9_\n' - <<<"${flags//=yes/}")
    if [ -n "$flags" ]; then # while the tests run, of which few need the processors
        programs=$(printf '+tests/test_%s ' "${FLAG_TESTS[@]}")
        # shellcheck disable=SC2086 # several variables
        compile "$flagged" 200 "library +bench/attention +bench/copy_step +bench/generation $programs" $flags &
    fi
    run_tests "$build" '' "${FIRST_TESTS[@]}" "${all[@]}"
    wait
    measure "$build" ''
    if [ -n "$flags" ] && [ -f "$flagged/libtapegrad.a" ]; then
        run_tests "$flagged" -flags "${FLAG_TESTS[@]}"
        wait
        measure "$flagged" -flags
    fi
    draw linear "${batches[0]}"
    shown precision 40 "$build/bench/precision" --device cuda
    for precision in "${precisions[@]}"; do
        shown "copy_step_eager_$precision" 40 "$build/bench/copy_step" "${device[@]}" --precision "$precision" --eager
    done
    shown generation_eager 40 "$build/bench/generation" "${device[@]}" --precision float32 --eager
    draw stateful-softmax "${batches[1]}"
    draw softmax "${batches[2]}"
    for precision in "${precisions[@]}"; do
        program "operations_$precision" 60 "$build/bench/operations" "${device[@]}" --precision "$precision" \
            --json "$results/operations_$precision.json"
    done
    if [ "$cuda" = yes ]; then
        program test_curand 60 sh -c "nvcc -std=c++17 -arch=native -I. -I$build/include tests/test_curand.cu \
            -o $build/tests/test_curand && $build/tests/test_curand"
    fi
    program test_figures.sh 60 env TAPEGRAD_BUILD="$build" CUDA="$cuda" tests/test_figures.sh
}

# Leaves in flags those that the Makefile knows.
known_flags() {
    local flag found=''
    for flag in $flags; do
        if grep -q "^${flag%%=*}\\b" Makefile; then found+="${found:+ }$flag"; else say "make knows no ${flag%%=*}"; fi
    done
    flags=$found
    [ -n "$flags" ] || say "no setting of FLAGS is measured"
}

# ------------------------------------------------------------------------------------------------ check
sanitize() { # TOOL SECONDS NAME...: six at a time
    local tool=$1 test options=()
    # One test allocates more memory than there is, which memcheck need not report.
    [ "$tool" != memcheck ] || options=(--report-api-errors no)
    [ "$tool" != racecheck ] || options=(--racecheck-detect-level error)
    for test in "${@:3}"; do
        at_most 6
        program "${tool}_$test" "$2" env DEVICE=cuda CK_FORK=no compute-sanitizer --tool "$tool" "${options[@]}" \
            --print-limit 20 --error-exitcode 1 "$build/tests/test_$test" &
    done
    wait
}

# Blocking launches report a fault at the kernel that caused it.
failed_again() {
    local status test
    for status in "$out"/prove/test_*.status; do
        if [ ! -f "$status" ] || [ "$(cat "$status")" = 0 ]; then continue; fi
        test=$(basename "$status" .status)
        at_most 4
        # The command stands in the first line of what it has printed.
        read -ra command < <(sed -n '1s/^\$ //p' "${status%.status}.txt")
        program "blocking_$test" 120 env CUDA_LAUNCH_BLOCKING=1 "${command[@]}" &
    done
    wait
}

profile() {
    local goals=("$build/bench/attention" --goals --device cuda --precision bf16 --eager --seconds 0 "${quick[@]}")
    local ncu=(ncu --set full --clock-control none --kernel-name-base demangled)
    # Of heads of 64 the goals measure (8, 8, 4096, 64) first.
    shown ncu_scan 100 "${ncu[@]}" -k 'regex:mma_.*64' -c 6 --kill yes -fo "$results/ncu_scan" "${goals[@]}"
    [ ! -f "$results/ncu_scan.ncu-rep" ] ||
        program ncu_scan_details 30 ncu --import "$results/ncu_scan.ncu-rep" --page details
    # The first launch of each.
    program ncu_kernels 150 "${ncu[@]}" --kernel-id '::regex:mma_:1' -fo "$results/ncu_kernels" "${goals[@]}"
    [ ! -f "$results/ncu_kernels.ncu-rep" ] ||
        program ncu_kernels_details 30 ncu --import "$results/ncu_kernels.ncu-rep" --page details
}

part_check() {
    local first=(attention rows generation replay) rest=(cuda products softmax_attention lsh_attention sampling
        layout elementwise features optim layers)
    [ -z "$REHEARSE" ] || { first=(replay) rest=(layout); }
    for directory in /usr/local/cuda/bin /usr/local/cuda/compute-sanitizer /opt/nvidia/nsight-compute/*; do
        PATH+=:$directory
    done
    has compute-sanitizer || say "compute-sanitizer was not found: memcheck and racecheck are left out"
    has compute-sanitizer && sanitize memcheck 150 "${first[@]}"
    failed_again
    if has ncu; then profile; else say "ncu was not found: the kernels are not profiled"; fi
    has compute-sanitizer || return
    sanitize racecheck 200 "${first[@]}"
    sanitize memcheck 90 "${rest[@]}"
    sanitize racecheck 90 "${rest[@]}"
}

# ----------------------------------------------------------------------------------------------- rivals
has_torch() {
    "$python" -c 'import torch' 2>/dev/null || { say "$python has no torch: PyTorch and rivals are left out"; false; }
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
        # What has to be compiled is compiled here, at the same time; nothing is timed.
        for method in "${methods[@]}"; do
            at_most 8
            program "compare_$method" 170 "$python" bench/peers/goals.py --compare "$method" "${peers[@]}" &
        done
        for method in "${steps[@]}"; do
            at_most 8
            program "compile_$method" 170 "$python" bench/peers/copy_task_step.py --attention "$method" \
                --modes compile --seconds 0 "${peers[@]}" &
        done
        wait
        for method in "${methods[@]}"; do
            if [ "$(status_of "compare_$method")" = 0 ]; then
                program "goals_$method" 100 "$python" bench/peers/goals.py "$method" "${peers[@]}"
            else
                say "goals_$method: left out, see compare_$method.txt"
            fi
        done
        [ "$(status_of compare_fla)" != 0 ] || steps+=(fla) # which torch.compile leaves as it is
        for method in "${steps[@]}"; do
            shown "copy_step_$method" 100 "$python" bench/peers/copy_task_step.py --attention "$method" \
                --seconds 0.5 "${peers[@]}"
        done
        figure=(--python "$python")
    fi
    shown figure1 320 "$build/bench/figure1" "${device[@]}" --total "$(total 250 60)" --limit 30 \
        --output "$results/figure1" "${lengths[@]}" "${figure[@]}"
    [ -z "$torch" ] || program operations 60 "$python" bench/peers/operations.py "${peers[@]}"
}

# ------------------------------------------------------------------------------------------------ learn
# total SECONDS REST: SECONDS, or what is left of the part but for REST.
total() {
    local most=$(($(left) - $2))
    [ "$most" -lt "$1" ] || most=$1
    echo $((most > 1 ? most : 1))
}

copy_task() { # NAME OPTION...
    program "copy_task_$1" 240 "$build/examples/copy_task" --preset paper --device cuda --precision tf32 \
        --score-every 10 --log "$results/$1.csv" "${tiny[@]}" "${@:2}"
    [ ! -f "$results/copy_task_$1.status" ] || tail -n 1 "$results/copy_task_$1.txt"
}

part_learn() {
    local logs=$results/logs name
    copy_task linear
    copy_task softmax --attention softmax
    copy_task lsh-4 --attention lsh --rounds 4
    # Of the runs that have ended.
    rm -rf "$logs" && mkdir "$logs"
    for name in linear softmax lsh-4; do
        [ "$(status_of "copy_task_$name")" != 0 ] || cp "$results/$name.csv" "$logs/"
    done
    rm -f "$results/figure2.status" # which costs nothing
    shown figure2 20 bench/figure2 --logs "$logs" --output "$results/figure2"
    # The longest sequences of quadratic methods would take all of the time.
    shown training_speed 180 "$build/bench/training_speed" "${device[@]}" "${speed[@]}" --limit 15 \
        --total "$(total 150 20)" \
        --output "$results/training_speed"
    if [ -d "${MNIST:-}" ]; then
        mnist
    else
        say "MNIST=DIRECTORY does not name MNIST's data: the image model is left out"
    fi
}

# Trains to the part's end but for the seconds that saving, the test images and samples take. A later call
# resumes from the checkpoint.
mnist() {
    local saved=$results/mnist.safetensors resumed=()
    [ ! -f "$saved" ] || resumed=(--resume "$saved")
    LIMIT=$((LIMIT - closing)) KILL_AFTER=$closing program mnist_train 1000000 "$build/examples/mnist" train \
        --preset paper --data "$MNIST" --device cuda --precision tf32 --score-every 100 --save "$saved" \
        --log "$results/mnist.csv" "${tiny_images[@]}" "${resumed[@]}"
    [ ! -f "$saved" ] || tail -n 1 "$results/mnist_train.txt"
    rm -f "$results/mnist_sample.status"
    [ ! -f "$saved" ] || program mnist_sample 20 "$build/examples/mnist" sample --model "$saved" --data "$MNIST" \
        --device cuda --output "$results/mnist.png"
}

# ------------------------------------------------------------------------------------------------- pack
pack() { # FILE
    local package sum
    { has apt-get && has git; } || { echo "bench/gpu.sh pack: needs git and Debian's apt-get" >&2; exit 1; }
    [ -z "$(git status --porcelain --untracked-files=no)" ] || say "changes that are not committed are not packed"
    mkdir -p packages
    for package in "${PACKAGES[@]}"; do
        ls packages/"${package}"_*.deb >/dev/null 2>&1 || (cd packages && apt-get download -q "$package") || exit 1
    done
    git archive --prefix=tapegrad/ --output "$1.tar" HEAD &&
        tar --append --file "$1.tar" --transform 's,^,tapegrad/,' packages/*.deb &&
        gzip --force "$1.tar" && mv "$1.tar.gz" "$1" || exit 1
    sum=$(($(stat -c %s "$1") / 1000000))
    say "$1: $sum MB, commit $(git rev-parse --short HEAD)"
    [ "$sum" -lt 40 ] || { echo "bench/gpu.sh pack: more than 40 MB" >&2; exit 1; }
}

# ------------------------------------------------------------------------------------------------- main
# Reports what stands after a part and writes the archive; exits with STATUS, or 1 where something failed
# or is left for the next call.
finish() { # [STATUS]
    local file passed=0 failed='' unfinished=''
    trap - INT TERM
    for file in "$results"/*.status; do
        [ -f "$file" ] || continue
        if [ "$(cat "$file")" = 0 ]; then passed=$((passed + 1)); else failed+=" $(basename "$file" .status)"; fi
    done
    for file in "$results"/*.unfinished; do
        [ ! -f "$file" ] || unfinished+=" $(basename "$file" .unfinished)"
    done
    say "$part: $passed passed, earlier calls included;${failed:+ FAILED:$failed;} for the next call:${unfinished:- nothing}"
    tar -czf "$out.tar.gz.new" --exclude='*.safetensors' -C "$(dirname "$out")" "$(basename "$out")" &&
        mv "$out.tar.gz.new" "$out.tar.gz" && say "all results: $out.tar.gz"
    [ -z "$failed$unfinished" ] || exit 1
    exit "${1:-0}"
}

stop() {
    jobs -p | xargs -r kill 2>/dev/null
    wait
    say "stopped"
    finish 130
}

quick=() device=(--device cuda) lengths=() peers=(--device cuda) tiny=() tiny_images=() speed=(--precision bf16)
precisions=(tf32 bf16 float32) batches=(10000 1000 100) few_pixels=()
closing=40 # seconds
if [ -n "$REHEARSE" ]; then
    quick=(--quick --seconds 0)
    device=(--device cpu --seconds 0) precisions=(float32)
    lengths=(--longest 1024 --tokens 1024)
    peers=(--device cpu --tiny --seconds 0 --precisions float32)
    tiny=(--steps 20 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 4 --length 16)
    tiny_images=(--layers 1 --heads 2 --head-dim 8 --feed-forward 16 --test-images 2 --evaluate-images 2)
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
