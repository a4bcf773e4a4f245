#!/usr/bin/env bash
# The figures of bench/, with tiny sizes: their tables, records and pictures.
. "$(dirname "$0")/check.sh"
export TAPEGRAD_CUDA_ON_HOST_DEVICES=0 # the emulation is slow, and not what is tested here
small="--seconds 0 --threads 1 --shortest 16 --longest 64 --memory 1000000000" # AddressSanitizer's share

# results NAME LINES METHOD...: a table of n lines, n - 1 records, the methods in both, a picture
results() {
    local name=$directory/$1 lines=$2 method
    check "$1.csv has $lines lines" [ "$(wc -l <"$name.csv")" -eq "$lines" ]
    check "$1.json has as many" [ "$(grep -c '"method": ' "$name.json")" -eq $((lines - 1)) ]
    for method in "${@:3}"; do
        check "$1 has $method" grep -q "^$method," "$name.csv"
        check "$1 has $method" grep -q "\"method\": \"$method\"" "$name.json"
        draws && check "$1.svg has $method" grep -q ">$method<\|>linear, $method f[a-z]*<\|>${method/-/ } alone<" "$name.svg"
    done
    draws && check "$1.svg ends" grep -q '</svg>' "$name.svg"
}

record() { # METHOD LENGTH MILLISECONDS BYTES
    echo "{ \"method\": \"$1\", \"N\": $2, \"B\": 2, \"ms_per_sample\": $3, \"bytes_per_sample\": $4, \"sizes\": \"$sizes\" }"
}
sizes=

draws() { command -v gnuplot >/dev/null; }
draws || echo "not tested: pictures, without gnuplot"

# A PATH without gnuplot.
without="$directory/without gnuplot"
mkdir "$without"
for program in bash sh env cat grep awk sed mktemp rm timeout nproc; do
    ln -s "$(command -v $program)" "$without/$program"
done
# draws_later NAME ENDING COMMAND...: without gnuplot the numbers are written all the same, and the
# printed command later draws the same picture from them as the first run.
draws_later() {
    local name=$directory/$1 later
    check "$1 without gnuplot" env PATH="$without" "${@:3}" --output "$name-later"
    cp "$directory/said" "$name-later.txt"
    later=$(tail -n 1 "$name-later.txt")
    check "$1 reports it" grep -q "^$name-later.svg is not drawn: gnuplot was not found" "$name-later.txt"
    check "$1 writes its table" cmp <(head -n 1 "$name.csv") <(head -n 1 "$name-later.csv")
    [ "$2" = csv ] || check "$1 writes its records" grep -q '"method": "linear"\|"method": "chunked"' "$name-later.json"
    check "$1 draws nothing" [ ! -e "$name-later.svg" ]
    draws || return
    check "$1:$later" sh -c "$later"
    check "$1 is drawn later" grep -q '</svg>' "$name-later.svg"
    check "$1 is drawn again" "$3" --draw "$name.$2" --output "$name-later"
    check "$1 is the same when it is drawn again" cmp <(sed s/-later// "$name-later.svg") "$name.svg"
}

check "figure1" "$build/bench/figure1" $small --tokens 64 --heads 2 --head-dim 8 --output "$directory/figure1"
results figure1 19 softmax lsh-1 lsh-4 lsh-8 linear window-256
for N in 1024 2048; do record lsh-8 $N 1 $((N * N << 8)); done >"$directory/records.json"
check "figure1 of records" "$build/bench/figure1" --draw "$directory/records.json" --output "$directory/records"
cp "$directory/said" "$directory/records.txt"
check "with the longest lengths" grep -q '^lsh-8  *~2050  *~8190  *~32800$' "$directory/records.txt"
draws_later figure1 json "$build/bench/figure1" $small --tokens 64 --heads 2 --head-dim 8
check "seconds in all" "$build/bench/figure1" $small --tokens 64 --heads 2 --head-dim 8 --total 1 --longest 2097152 \
    --output "$directory/total"
cp "$directory/said" "$directory/total.txt"
check "end all lines" grep -q 'ends here: the seconds of --total have passed' "$directory/total.txt"

# A stub interpreter that answers like bench/peers/attention.py: one peer is measured, one fails at
# the greatest length, one is missing.
interpreter="$directory/it's python"
cat >"$interpreter" <<'END'
#!/bin/sh
echo "$*" >>"$0.asked"
nproc >"$0.processors"
case "$*" in
*--list) printf 'torch-softmax\ntorch-chunked\nfast-transformers: it is not installed\n' ;;
*'--method torch-chunked --length 64 '*) echo 'out of memory'; exit 1 ;;
*) echo '{"ms": 2, "bytes": 4096}' ;;
esac
END
chmod +x "$interpreter"
check "figure1 with peers" env OMP_PROC_BIND=true "$build/bench/figure1" $small --tokens 64 --heads 2 --head-dim 8 \
    --python "$interpreter" --output "$directory/peers"
cp "$directory/said" "$directory/peers.txt"
check "a peer is measured" [ "$(grep '^torch-softmax' "$directory/peers.csv" | tr '\n' ' ')" = \
    "torch-softmax,16,4,0.5,1024 torch-softmax,32,2,1,2048 torch-softmax,64,1,2,4096 " ]
check "with this program's sizes and threads" grep -q -e "^bench/peers/attention.py --device cpu\
 --precisions float32 --seconds 0 --threads 1 --heads 2 --head-dim 8\
 --method torch-softmax --length 16 --batch 4$" "$interpreter.asked"
check "on all processors" [ "$(cat "$interpreter.processors")" -ge "$(nproc)" ]
check "a peer ends where it fails" [ "$(grep -c '^torch-chunked,' "$directory/peers.csv")" -eq 2 ]
check "and reports why" grep -q 'ends here: out of memory$' "$directory/peers.txt"
check "a peer that is not there" [ "$(grep -A1 '^fast-transformers$' "$directory/peers.txt" | tail -n 1)" = \
    "  skipped: it is not installed" ]
draws && check "the picture has those measured" [ "$(grep -o '>PyTorch [^<]*<\|>fast-transformers' "$directory/peers.svg" |
    sort -u | tr '\n' ' ')" = ">PyTorch linear, chunked< >PyTorch softmax< " ]
check "an interpreter without PyTorch" [ "$("$build/bench/figure1" $small --python false --output "$directory/none" 2>&1 |
    tail -n 1 | cut -d: -f1)" = "--python false" ]

check "training_speed" "$build/bench/training_speed" $small --vocabulary 11 --layers 1 --heads 2 \
    --head-dim 8 --output "$directory/training_speed"
cp "$directory/said" "$directory/training_speed.txt"
results training_speed 22 softmax chunked polynomial recurrent quadratic softmax-attention chunked-attention
check "it estimates GPT-2" [ "$(grep -c '^124M \|^355M \|^774M \|^1.5B ' "$directory/training_speed.txt")" -eq 4 ]
# Of 819200 weights: T = 819200 (2e-9 N + 1e-6) + A; A = 4e-6 N^2 of softmax, 4.096e-3 N of the chunked form.
sizes="4 layers of 4 heads of 32, 256 symbols, one sequence"
for N in 512 1024 2048 4096; do
    awk -v N=$N 'BEGIN { rest = 819200 * (2e-9 * N + 1e-6); s = 4e-6 * N * N; c = 4.096e-3 * N
        print "softmax", rest + s; print "chunked", rest + c; print "softmax-attention", s; print "chunked-attention", c }' OFMT=%.12g |
        while read -r method ms; do record "$method" $N "$ms" 1; done
done >"$directory/estimated.json"
check "training_speed of records" "$build/bench/training_speed" --draw "$directory/estimated.json" --output "$directory/estimated"
cp "$directory/said" "$directory/estimated.txt"
check "whose crossing is where A is equal" grep -q '^linear, chunked form, overtakes softmax at about N = 1020$' "$directory/estimated.txt"
check "and estimate softmax" grep -q '^124M  softmax  *~0.452  *~2.34  .*~5010$' "$directory/estimated.txt"
check "and the chunked form" grep -q '^ *chunked  *~0.528  *~1.74  *~6.59  *~26  *~104  *~2050 ' "$directory/estimated.txt"
check "a model that there is not" [ "$("$build/bench/training_speed" --model gpt 2>&1)" = \
    "--model is gpt, expected small, 124M, 355M, 774M or 1.5B" ]
check "token_speed" "$build/bench/token_speed" $small --layers 4 --heads 2 --head-dim 8 --output "$directory/token_speed"
results token_speed 25 softmax lsh-4 hybrid linear polynomial decay unnormalized delta
check "chunks" "$build/bench/chunks" --seconds 0 --threads 1 --shortest 16 --longest 64 --output "$directory/chunks"
check "has chunks up to each length" [ "$(cut -d, -f1-3 "$directory/chunks.csv" | grep '^64,' | tr '\n' ' ')" = \
    "64,16,0 64,16,4 64,16,8 64,16,16 64,64,0 64,64,4 64,64,8 64,64,16 64,64,32 64,64,64 " ]
check "and one default of each" [ "$(cut -d, -f5 "$directory/chunks.csv" | grep -c 1)" -eq 6 ]
# names that a shell and gnuplot would take for commands
odd="$directory/it's \`touch run_by_name\` \"\$(touch run_by_name)\""
cp "$directory/chunks.csv" "$odd.csv"
draws && check "chunks with an odd name" "$build/bench/chunks" --draw "$odd.csv" --output "$odd"
draws && check "draws the same" cmp "$odd.svg" "$directory/chunks.svg"
check "chunks without gnuplot, with an odd name" env PATH="$without" "$build/bench/chunks" --draw "$odd.csv" --output "$odd"
tail -n 1 "$directory/said" >"$directory/odd.txt"
draws && check "draws it later" sh -c "$(cat "$directory/odd.txt")"
check "runs no command" [ ! -e run_by_name ]
draws && check "chunks.svg has three panels" [ "$(grep -c '>heads of [0-9]*<' "$directory/chunks.svg")" -eq 3 ]
check "chunks without gnuplot" env PATH="$without" "$build/bench/chunks" --draw "$directory/chunks.csv" --output "$directory/chunks-later"
cp "$directory/said" "$directory/later.txt"
draws && check "draws later" sh -c "$(tail -n 1 "$directory/later.txt" | sed "s/-later'.csv/'.csv/")"
draws && check "the same picture" cmp <(sed s/-later// "$directory/chunks-later.svg") "$directory/chunks.svg"
draws && check "a table that is none" grep -q "no row of this figure" <("$build/bench/chunks" --draw tests/run --output "$directory/none" 2>&1)
check "bands.awk has means between the lowest and the highest" [ "$(printf '%s\n' a,1,1,2 a,1,2,4 a,2,1,3 a,2,2,3 b,1,1,7 |
    awk -f bench/bands.awk | tr '\n' ';')" = "# a;1 2.5 2 3;2 3.5 3 4;;;# b;1 7 7 7;;;" ]
check "and of consecutive rows their means first" [ "$(printf '%s\n' a,1,1,2 a,1,2,4 a,1,3,5 a,2,1,3 a,2,2,3 a,2,3,9 |
    awk -v points=2 -f bench/bands.awk | tr '\n' ';')" = "# a;2 3 3 3;3 7 5 9;;;" ]
mkdir "$directory/books"
cp examples/sonnets.txt "$directory/books/train.txt" && head -n 50 examples/sonnets.txt >"$directory/books/valid.txt"
contexts="bench/contexts --build $build --data $directory/books --tokens 64 --steps 60 --evaluate-every 20 --device cpu"
check "contexts" $contexts --contexts 16 --attentions "linear delta" --output "$directory/contexts"
check "contexts.csv has all tens of steps and the results" [ "$(wc -l <"$directory/contexts.csv")" -eq 15 ]
draws && check "contexts.svg has both" [ "$(grep -o '>linear<\|>decay<\|>delta<' "$directory/contexts.svg" | sort -u | tr -d '\n')" = ">delta<>linear<" ]
cp "$directory/contexts.csv" "$odd.csv"
draws && check "contexts with an odd name" bench/contexts --draw "$odd.csv" --output "$odd"
draws && check "contexts draws the same" cmp "$odd.svg" "$directory/contexts.svg"
check "contexts runs no command" [ ! -e run_by_name ]
check "contexts goes on" $contexts --contexts "16 32" --attentions "linear" --output "$directory/contexts"
cp "$directory/said" "$directory/contexts.txt"
check "where it stopped" [ "$(grep '^==' "$directory/contexts.txt")" = "== linear, context 32, seed 1" ]
check "with a table" grep -q "^linear  *32  held out [0-9.]* bits per byte, seeds 1, spikes in [0-9]* tens of steps$" "$directory/contexts.txt"
check "contexts of two seeds" $contexts --contexts 16 --attentions linear --seeds "1 2" --output "$directory/contexts"
check "with their deviation" [ "$(grep -c "^linear  *16  held out [0-9.]* (0.[0-9]*) bits per byte, seeds 2," "$directory/said")" = 1 ]
check "contexts with windows" $contexts --contexts 16 --attentions "window based" --output "$directory/windows"
draws && check "windows.svg has both" [ "$(grep -o '>window<\|>based<' "$directory/windows.svg" | sort -u | tr -d '\n')" = ">based<>window<" ]
check "sizes" bench/sizes --build "$build" --data "$directory/books" --tokens 32 --steps 51 --evaluate-every 51 --device cpu \
    --contexts 16 --sizes "1 2" --attentions "linear delta" --seeds "1 2" --output "$directory/sizes"
check "sizes prints mean, lowest and highest" [ "$(grep -cE '^(linear|delta) +(16384|131072) weights  held out [0-9.]+ bits per byte \([0-9.]+ to [0-9.]+\)$' "$directory/said")" = 4 ]
check "sizes.csv has all runs" [ "$(cut -d, -f1-3 "$directory/sizes.csv" | tail -n +2 | sort | tr '\n' ' ')" = \
    "delta,1,131072 delta,1,16384 delta,2,131072 delta,2,16384 linear,1,131072 linear,1,16384 linear,2,131072 linear,2,16384 " ]
cp "$directory/sizes.csv" "$odd.csv"
draws && check "sizes with an odd name" bench/sizes --draw "$odd.csv" --output "$odd"
draws && check "sizes draws the same" cmp "$odd.svg" "$directory/sizes.svg"
check "sizes runs no command" [ ! -e run_by_name ]
convert() {
    bench/convert --build "$build" --train examples/sonnets.txt --teacher-steps 8 --steps 16 --match 8 --device cpu \
        --model "--layers 1 --heads 2 --head-dim 8 --feed-forward 16 --context 16 --batch 2" "$@"
}
check "convert" convert --kinds "linear:random decay" --output "$directory/convert"
check "convert's table has both" [ "$(grep -c '^linear:random  *[0-9.]* .*%$\|^decay  *[0-9.]* .*%$' "$directory/said")" -eq 2 ]
check "convert.csv has the steps of all runs, and errors of attention" [ \
    "$(grep -c '^decay,match,1,\([2468]\|1[0246]\),[0-9.]*,0*[0-9.]*$' "$directory/convert.csv") $(
        grep -c ',[0-9.]*[1-9][0-9]*$' <(grep -o ',match,1,[2468],[0-9.]*,.*' "$directory/convert.csv"))" = "8 8" ]
draws && check "convert.svg has both" [ "$(grep -o '>linear:random<\|>decay<' "$directory/convert.svg" | sort -u | tr -d '\n')" = \
    ">decay<>linear:random<" ]
check "convert goes on" convert --kinds "decay delta" --output "$directory/convert"
check "where it stopped" [ "$(grep -c '^== delta' "$directory/said") $(grep -c '^== ' "$directory/said")" = "3 3" ]
cp "$directory/convert.csv" "$odd.csv"
draws && check "convert with an odd name" bench/convert --draw "$odd.csv" --output "$odd"
check "convert runs no command" [ ! -e run_by_name ]
mkdir "$directory/digits"
for set in "train 4" "t10k 3"; do # of 4 rows and 4 columns
    { printf '\0\0\010\003\0\0\0%b\0\0\0\004\0\0\0\004' "\\00${set#* }"; head -c $((16 * ${set#* })) examples/sonnets.txt
    } >"$directory/digits/${set% *}-images-idx3-ubyte"
done
images="bench/images --build $build --data $directory/digits --device cpu --threads 1 --steps 4 --batch 2 --evaluate-every 2
 --count 1 --samples 2 --scored 2 --batch-drawn 2 --output $directory/images"
tiny="--rows 4 --columns 4 --layers 1 --heads 1 --head-dim 8 --feed-forward 8 --logistics 2"
check "images" $images --model "$tiny" --attentions "linear softmax"
check "images' table has softmax without a state too" [ "$(grep -c '^| [a-z-]* *| [0-9.]* | *0.6' "$directory/images.txt")" -eq 3 ]
check "and no gaps" grep -q '^| linear  *| [0-9.]* *| 0.644 | *[0-9.e+]* | 142.8 | *[0-9.e-]* | *5.5 | *[0-9.]* | *[0-9.]* |$' \
    "$directory/images.txt"
check "images.csv has the evaluated steps" [ "$(grep -c '^softmax,1,[24],[0-9.]*,[0-9.]*,[0-9.]' "$directory/images.csv")" -eq 2 ]
check "images draws" [ -s "$directory/images-softmax.png" ]
draws && check "images.svg has both" [ "$(grep -o '>linear<\|>decay<\|>softmax<' "$directory/images.svg" | sort -u | tr -d '\n')" = ">linear<>softmax<" ]
rm "$directory/images.runs/1/softmax.txt"
check "images goes on" $images --model "$tiny" --attentions "linear softmax" --steps 5
cp "$directory/said" "$directory/images-later.txt"
check "where it stopped" [ "$(grep '^==' "$directory/images-later.txt")" = "== softmax, seed 1" ]
check "images of two seeds" $images --model "$tiny" --attentions linear --seeds "1 2" --steps 5
check "has their mean bits" grep -q '^| linear  *| [0-9.]* ([0-9.]*) | 0.644 | ' "$directory/images.txt"
check "and both in its table" [ "$(cut -d, -f2 "$directory/images.csv" | sort -u | tr '\n' ' ')" = "1 2 seed " ]
check "images without data" [ "$(bench/images 2>&1)" = "bench/images: expected --data DIRECTORY or --timed-only" ]
times="bench/images --build $build --device cpu --threads 1 --batch-drawn 2 --timed-only"
check "images times alone" $times --model "$tiny" --attentions linear --pixels 8 --output "$directory/timed"
check "without bits, from half of the pixels" grep -q '^| linear  *| *- | 0.644 | *~' "$directory/timed.txt"
check "and without options of train" [ "$($times --steps 4 2>&1)" = \
    "bench/images: --steps 4: expected no options of train with --timed-only" ]
check "figure2" bench/figure2 --build "$build" --output "$directory/figure2" --device cpu --threads 1 --steps 20 \
    --length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 8 --seeds "1 2"
check "figure2.csv has 121 lines" [ "$(wc -l <"$directory/figure2.csv")" -eq 121 ]
check "of both seeds" [ "$(tail -n +2 "$directory/figure2.csv" | cut -d, -f1,2 | uniq | tr '\n' ' ')" = \
    "softmax,1 lsh-4,1 linear,1 softmax,2 lsh-4,2 linear,2 " ]
draws && check "figure2.svg has its methods" [ "$(grep -o '>softmax<\|>lsh-4<\|>linear<' "$directory/figure2.svg" | sort -u | wc -l)" -eq 3 ]
check "and its runs are removed" [ ! -e "$directory/figure2.runs" ]
tiny="--device cpu --threads 1 --length 16 --symbols 3 --layers 1 --heads 2 --head-dim 8 --feed-forward 16 --batch 8"
longer="bench/figure2 --build $build $tiny --runs $directory/longer.runs --output $directory/longer"
timeout --signal=INT 2 $longer --steps 1000000 >"$directory/longer.txt" 2>&1
check "figure2 stops at its first method" [ "$(grep -c '^==' "$directory/longer.txt")" = 1 ]
check "and has not ended it" [ ! -e "$directory/longer.runs/1/softmax.txt" ]
done=$(tail -n 1 "$directory/longer.runs/1/softmax.csv" | cut -d, -f1)
check "figure2 goes on" $longer --steps $((done + 3))
check "with the steps after it" [ "$(grep -c '^softmax,1,' "$directory/longer.csv")" -eq $((done + 3)) ]
mkdir "$directory/logs"
for method in softmax lsh-4 linear; do # whose second number is the accuracy, and the third the learning rate
    { echo step,loss,accuracy,learning_rate,seconds
      awk -F, -v m=$method '$1 == m && $2 == 1 { print $3 "," $4 "," $5 ",0.001," $6 }' "$directory/figure2.csv"
    } >"$directory/logs/$method.csv"
done
draws && check "figure2 has its options below the title" grep -q -e '>--device cpu .* --batch 8<' "$directory/figure2.svg"
draws && check "and none of logs" bench/figure2 --logs "$directory/logs" --output "$directory/figure2"
check "figure2 of logs has seed 1" [ "$(cut -d, -f2 "$directory/figure2.csv" | sort -u | tr '\n' ' ')" = "1 seed " ]
draws_later figure2 csv bench/figure2 --logs "$directory/logs"
check "figure2 of logs" cmp "$directory/figure2.csv" "$directory/figure2-later.csv"
draws && check "figure2 marks the drop" bench/figure2 --draw "$directory/figure2.csv" --output "$directory/drop" --drop-at 12
draws && check "by its name" grep -q 'learning rate / 10' "$directory/drop.svg"
rm "$directory/logs/softmax.csv" "$directory/logs/lsh-4.csv"
check "figure2 of one log" bench/figure2 --logs "$directory/logs" --output "$directory/one"
check "has that line" [ "$(wc -l <"$directory/one.csv")" -eq 21 ]

check "feature_maps" "$build/bench/feature_maps" --steps 50 --seeds 1 --threads 1 --output "$directory/maps"
check "feature_maps counts gradients of relu" [ "$(awk -F, '{ print $1, ($5 > 0.1 && $5 < 0.9) }' "$directory/maps.csv" |
    tr '\n' ' ')" = "features 0 elu+1 0 relu 1 softplus 0 " ]
draws && check "feature_maps.svg" grep -q '>softplus<' "$directory/maps.svg"
cp "$directory/maps.svg" "$directory/first.svg" 2>/dev/null
draws && check "feature_maps draws again" "$build/bench/feature_maps" --draw "$directory/maps.csv" --output "$directory/maps"
draws && check "the same" cmp "$directory/first.svg" "$directory/maps.svg"

mkdir "$directory/runs"
for model in lstm softmax lsh-4 linear; do
    printf 'step,loss,validation_error,learning_rate,seconds\n1,3,,0.1,1\n2,2,90,0.1,4\n4,1,12.5,0.1,6\n' \
        >"$directory/runs/$model.csv"
    printf 'decoding symbols error\ngreedy 100 12.00 %%\nbeam 10 100 11.00 %%\n' >"$directory/runs/$model.txt"
done
check "table3" bench/table3 --runs "$directory/runs" --output "$directory/table3"
check "its rows" [ "$(grep -c '^lstm \|^softmax \|^lsh-4 \|^linear ' "$directory/table3.txt")" -eq 4 ]
check "its means" grep -q '^linear  *3.00 seconds per epoch, 2 epochs, validation error 12.50 %' "$directory/table3.txt"
check "its errors" [ "$(grep -c '^beam 10 100 11.00 %' "$directory/table3.txt")" -eq 4 ]
check "its points" [ "$(wc -l <"$directory/table3.csv")" -eq 9 ]
draws && check "its picture" grep -q '>lsh-4<' "$directory/table3.svg"
check "table3 without data" [ "$(bench/table3 2>&1 | head -n 1 | cut -d' ' -f1-3)" = "usage: bench/table3 --data" ]

# A line ends where its points exceed the memory limit, and the others are measured.
# (AddressSanitizer and cuBLAS allocate more themselves.)
if [ "${CUDA:-no}" = no ] && ! nm "$build/libtapegrad.a" 2>/dev/null | grep -q -m1 __asan; then
    check "figure1 in little memory" "$build/bench/figure1" --seconds 0 --threads 1 --shortest 64 --longest 4096 \
        --memory 20 --tokens 64 --output "$directory/little"
    check "every method begins" [ "$(grep -c ',64,1,' "$directory/little.csv")" -eq 6 ]
    check "and end" [ "$(grep -c ',4096,1,' "$directory/little.csv")" -eq 0 ]
    check "figure1 in no memory" [ "$("$build/bench/figure1" --memory 1 --shortest 4096 --longest 4096 \
        --output "$directory/none" 2>&1 | tail -n 1)" = "no point was measured; the reasons are printed above" ]
fi

report
