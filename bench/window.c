/* The cost of visible tiles: causal softmax attention with a window, sinks, a prefix and documents
 * beside the same without. A tile of TILE queries and TILE keys is visible if any of its pairs is.
 * Milliseconds per call, of calls that take turns; then the time per visible tile, relative to that
 * of attention without limits. A ratio of 1 is time proportional to these tiles. */
#include "bench/common.h"

#include <stdlib.h>

enum { HEADS = 4, HEAD_DIM = 64, TILE = 64, ROUNDS = 7, DOCUMENT = 512 };

typedef struct Limits {
    const char *name;
    int64_t window, sinks, prefix;
    bool documents; /* of DOCUMENT positions */
} Limits;
static const Limits all_limits[] = {
    { "none", 0, 0, 0, false },
    { "window 64", 64, 0, 0, false },
    { "window 256", 256, 0, 0, false },
    { "window 1024", 1024, 0, 0, false },
    { "window 256, 4 sinks", 256, 4, 0, false },
    { "window 256, prefix 256", 256, 0, 256, false },
    { "documents of 512", 0, 0, 0, true },
};
enum { LIMITS = sizeof all_limits / sizeof *all_limits };

static bool is_visible(const Limits *x, int64_t i, int64_t j)
{
    if (x->documents && i / DOCUMENT != j / DOCUMENT)
        return false;
    return (i < x->prefix && j < x->prefix) ||
           (j <= i && (x->window == 0 || i - j < x->window || j < x->sinks));
}

static bool is_tile_visible(const Limits *x, int64_t row, int64_t column)
{
    for (int64_t i = row; i < row + TILE; i++)
        for (int64_t j = column + TILE - 1; j >= column; j--)
            if (is_visible(x, i, j))
                return true;
    return false;
}

/* Of one head. */
static int64_t visible_tiles(const Limits *x, int64_t N)
{
    int64_t count = 0;
    for (int64_t row = 0; row < N; row += TILE)
        for (int64_t column = 0; column < N; column += TILE)
            count += is_tile_visible(x, row, column);
    return count;
}

static double time_call(Tape *tape, Tensor *const *x, SoftmaxAttentionOptions options,
                        bool backward)
{
    const double start = bench_seconds();
    Tensor *out = op_causal_softmax_attention(tape, x[0], x[1], x[2], options);
    if (backward)
        tape_backward_from(tape, out, out);
    const double ms = 1e3 * (bench_seconds() - start);
    tape_reset(tape);
    return ms;
}

/* ms[limits] = medians of rounds in which all limits take turns, after one that does not count */
static void measure(Timing *ms, Tape *tape, Tensor *const *x, Tensor *offsets, bool backward)
{
    double times[LIMITS][1 + ROUNDS];
    for (int round = 0; round <= ROUNDS; round++)
        for (int n = 0; n < LIMITS; n++) {
            const Limits *of = &all_limits[n];
            const SoftmaxAttentionOptions options = { .window = of->window,
                                                      .sinks = of->sinks,
                                                      .prefix = of->prefix,
                                                      .offsets = of->documents ? offsets : NULL };
            times[n][round] = time_call(tape, x, options, backward);
        }
    for (int n = 0; n < LIMITS; n++)
        ms[n] = bench_timing(times[n] + 1, ROUNDS);
}

static void measure_length(BenchOptions *options, int64_t N)
{
    Tape *tape = bench_tape(options);
    const TensorType type = options->precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Tensor *x[3], *offsets = tape_persistent_i32(tape, shape(N / DOCUMENT + 1));
    int32_t *integers = malloc((size_t)(N / DOCUMENT + 1) * sizeof *integers);
    for (int64_t i = 0; integers && i <= N / DOCUMENT; i++)
        integers[i] = (int32_t)(i * DOCUMENT);
    if (!integers)
        exit(1);
    tensor_write_i32(offsets, integers);
    free(integers);
    for (int i = 0; i < 3; i++) {
        x[i] = tape_persistent_variable(tape, type, shape(1, N, HEADS, HEAD_DIM));
        bench_fill(x[i], (uint64_t)i);
    }
    Timing forward[LIMITS], both[LIMITS];
    measure(forward, tape, x, offsets, false);
    measure(both, tape, x, offsets, true);
    int64_t of_all = 0;
    for (int n = 0; n < LIMITS; n++) {
        const int64_t tiles = visible_tiles(&all_limits[n], N);
        of_all = n == 0 ? tiles : of_all;
        const double share = (double)tiles / (double)of_all;
        const double f = forward[n].median / forward[0].median / share;
        const double b = both[n].median / both[0].median / share;
        printf("%6lld  %-22s %6lld  %9.2f %6.2f  %9.2f %6.2f\n", (long long)N, all_limits[n].name,
               (long long)tiles, forward[n].median, f, both[n].median, b);
        bench_record(options,
                     "\"N\": %lld, \"limits\": \"%s\", \"tiles\": %lld, \"forward_ms\": %.5g, "
                     "\"forward_ratio\": %.4g, \"both_ms\": %.5g, \"both_ratio\": %.4g",
                     (long long)N, all_limits[n].name, (long long)tiles, forward[n].median, f,
                     both[n].median, b);
    }
    fflush(stdout);
    tape_free(tape);
}

int main(int argc, char **argv)
{
    int64_t shortest = 1024, longest = 16384;
    const BenchOption more[] = { { .name = "shortest",
                                   .help = "the first length (1024); the next are twice as long",
                                   .number = &shortest,
                                   .min = DOCUMENT },
                                 { .name = "longest",
                                   .help = "the last length (16384)",
                                   .number = &longest,
                                   .min = DOCUMENT },
                                 { .name = NULL } };
    BenchOptions options =
        bench_begin_with(argc, argv, "softmax attention's time per visible tile", more);
    if (shortest % DOCUMENT != 0 || longest < shortest) {
        fprintf(stderr,
                "--shortest is %lld, expected a multiple of %d, and at most --longest, %lld\n",
                (long long)shortest, DOCUMENT, (long long)longest);
        return 2;
    }
    if (device_is_cuda(options.device)) {
        fprintf(stderr, "--device is %s, expected plain or cpu: calls are timed without waiting\n",
                device_name(options.device));
        return 2;
    }
    printf("causal softmax attention, B=1 H=%d D=M=%d, %s; visible tiles of a head; ms, and per "
           "visible tile relative to no limits\n     N  limits                  tiles    forward  "
           "ratio  and backw.  ratio\n",
           HEADS, HEAD_DIM, bench_where(&options).text);
    for (int64_t N = shortest; N <= longest; N *= 2)
        measure_length(&options, N);
    bench_end(&options);
    return 0;
}
