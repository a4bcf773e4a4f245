/* Causal linear attention with feature map and normaliser: time and memory against length.
 *
 * The floor is what arithmetic and memory allow, whichever takes longer at the machine's limits: 4 D M
 * flops a position and head for the forward pass (update S, read it), 14 D M with the backward pass;
 * q, k, v, out are moved once forward, and q, k, v, out, dout, dq, dk, dv once backward. Arguments
 * that fit the caches may come below memory's floor. */
#include "bench/limits.h"

#include <math.h>

#include <stdlib.h>

enum { BATCH = 1, HEADS = 8 };

typedef struct Case {
    Params *params;
    Tape *tape;
    Tensor *query, *key, *value, *upstream;
    bool backward;
} Case;

static void run(void *context)
{
    Case *c = context;
    Tensor *out =
        op_causal_linear_attention(c->tape, c->query, c->key, c->value, (LinearAttention){ 0 });
    if (c->backward)
        tape_backward_from(c->tape, out, c->upstream);
    params_zero_gradients(c->params);
}

/* The milliseconds that products D M of positions and heads, and elements B N H D, take at least. */
static double floor_ms(const Limits *limits, double products, double elements, bool backward)
{
    const double flops = (backward ? 14 : 4) * products;
    const double bytes = (backward ? 12 : 4) * elements * (double)sizeof(Real);
    return fmax(flops / limits->gflops, bytes / limits->gbytes) * 1e-6;
}

static void measure(BenchOptions *options, const Limits *limits, int64_t positions,
                    int64_t head_dim)
{
    Device *device = options->device;
    const Shape size = shape(BATCH, positions, HEADS, head_dim);
    const Initializer normal = { INITIAL_NORMAL, 1 };
    Params *params = params_new(device, 1);
    Case c = { .params = params, .tape = bench_tape(options) };
    c.query = params_add(params, "query", size, normal);
    c.key = params_add(params, "key", size, normal);
    c.value = params_add(params, "value", size, normal);
    Tensor *source = params_add(params, "upstream", size, normal);
    tape_use(c.tape, "bench", source);
    c.upstream = source;

    const double elements = (double)shape_count(size), products = elements * (double)head_dim;
    printf("%6lld %4lld", (long long)positions, (long long)head_dim);
    for (int pass = 0; pass < 2; pass++) {
        c.backward = pass == 1;
        const size_t before = device_memory(device).current;
        device_reset_peak(device);
        Timing ms = bench_step(options, c.tape, run, &c);
        const size_t peak = device_memory(device).peak - before;
        const double times_floor = ms.median / floor_ms(limits, products, elements, pass == 1);
        printf("  %9.3f ms %5.2f floor %7.2f MiB", ms.median, times_floor,
               (double)peak / (1 << 20));
        bench_record(options,
                     "\"name\": \"causal_linear_attention\", \"B\": %d, \"H\": %d, \"N\": %lld, "
                     "\"D\": %lld, \"pass\": \"%s\", \"ms\": %.5g, \"ms_min\": %.5g, "
                     "\"ms_max\": %.5g, \"times_floor\": %.3g, \"peak_bytes\": %zu, "
                     "\"where\": \"%s\"",
                     BATCH, HEADS, (long long)positions, (long long)head_dim,
                     pass ? "forward+backward" : "forward", ms.median, ms.least, ms.most,
                     times_floor, peak, bench_where(options).text);
    }
    printf("\n");
    fflush(stdout);
    tape_free(c.tape);
    params_free(params);
    device_release_cached(device);
}

int main(int argc, char **argv)
{
    BenchOptions options = bench_begin(argc, argv, "causal linear attention against length");
    const Limits limits = bench_limits(&options);
    printf("causal linear attention, B=%d H=%d D=M, %s; %s; memory beyond inputs and their "
           "gradients\n     N    D  forward                              forward+backward\n",
           BATCH, HEADS, bench_where(&options).text, limits_text(&limits).text);
    for (int64_t head_dim = 16; head_dim <= 128; head_dim *= 2)
        for (int64_t positions = 512; positions <= 65536; positions *= 2)
            measure(&options, &limits, positions, head_dim);
    bench_end(&options);
    return EXIT_SUCCESS;
}
