/* Causal linear attention, or the delta rule, of one sequence over several processes: time, memory
 * and bytes per rank, and, with --check, each position's error against rank 0 alone.
 *     mpirun -np 4 build/bench/sequence_parallel --check /tmp/parts
 * The inputs are functions of the position, whatever the number of ranks. */
#include "bench/common.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { QUERY, KEY, VALUE, UPSTREAM, LOG_DECAY, INPUTS };
enum { OUT, RESULTS = 4 }; /* then the gradients of QUERY, KEY, VALUE */
enum { MAX_RANKS = 64 };

typedef struct Sizes {
    int64_t N, H, D, decay, delta, uneven;
} Sizes;

typedef struct Pass {
    double forward, both;   /* seconds */
    size_t peak;            /* bytes of tensors */
    DistTraffic traffic;    /* of both */
    Real *results[RESULTS]; /* [count, H, D], if they are kept */
} Pass;

static void fail(const char *what)
{
    fprintf(stderr, "sequence_parallel: %s\n", what);
    dist_abort(EXIT_FAILURE);
}

static void *allocate(int64_t count)
{
    void *memory = malloc((size_t)count * sizeof(Real));
    if (!memory)
        fail("memory is exhausted");
    return memory;
}

/* The first position of a rank; of `ranks`: N. Uneven: rank r has r + 1 shares. */
static int64_t first_position_of(const Sizes *s, int rank, int ranks)
{
    if (s->uneven)
        return s->N * rank * (rank + 1) / (ranks * (ranks + 1));
    return s->N * rank / ranks;
}

/* An input of positions [first, first + count), normal values; log decays of -1/1024 */
static Tensor *input(Tape *tape, const Sizes *s, int which, int64_t first, int64_t count)
{
    const int64_t row = which == LOG_DECAY ? s->H : s->H * s->D;
    Real *host = allocate(count * row);
    Random random = { .seed = 1,
                      .stream = (uint64_t)which,
                      .counter = (uint64_t)(first * row / 4) };
    if (which == LOG_DECAY)
        for (int64_t i = 0; i < count * row; i++)
            host[i] = -(Real)1 / 1024;
    else
        random_normal(&random, host, count * row);
    const Shape of = which == LOG_DECAY ? shape(1, count, s->H) : shape(1, count, s->H, s->D);
    Tensor *x = which == UPSTREAM ? tape_input(tape, host, of) : tape_variable(tape, host, of);
    free(host);
    return x;
}

static Tensor *attention(Tape *tape, Tensor *x[INPUTS], bool split)
{
    CausalLinearAttentionOptions options = { .eps = 1e-6, .log_decay = x[LOG_DECAY] };
    if (split) {
        Tensor *state = op_causal_linear_state(tape, x[KEY], x[VALUE], options);
        Tensor *log_decay = x[LOG_DECAY] ? op_sum(tape, x[LOG_DECAY], 1) : NULL;
        options.state = dist_states_before(tape, state, log_decay);
    }
    return op_causal_linear_attention(tape, x[QUERY], x[KEY], x[VALUE], options, NULL);
}

/* All elements are value; those on the diagonal of the last two dimensions, diagonal. */
static Tensor *constant(Tape *tape, Shape of, Real value, Real diagonal)
{
    const int64_t count = shape_count(of), rows = of.size[of.rank - 2], D = of.size[of.rank - 1];
    Real *host = allocate(count);
    for (int64_t i = 0; i < count; i++)
        host[i] = i % D == i / D % rows ? diagonal : value;
    Tensor *result = tape_input(tape, host, of);
    free(host);
    return result;
}

/* beta = 1/2; keys of length 1 */
static Tensor *delta_rule(Tape *tape, Tensor *x[INPUTS], bool split)
{
    const int64_t *size = x[KEY]->shape.size, D = size[3];
    DeltaRuleOptions options = { .log_decay = x[LOG_DECAY] };
    Tensor *key = op_l2_normalize(tape, x[KEY], 1e-6), *value = x[VALUE];
    Tensor *beta = constant(tape, shape(1, size[1], size[2]), (Real)0.5, (Real)0.5);
    if (split) {
        Tensor *state, *transition;
        op_delta_rule(tape, key, key, value, beta, options, &state);
        options.state = constant(tape, shape(1, size[2], D, D), 0, 1);
        Tensor *zeros = constant(tape, value->shape, 0, 0);
        op_delta_rule(tape, key, key, zeros, beta, options, &transition);
        options.state = dist_states_before(tape, state, transition);
    }
    return op_delta_rule(tape, x[QUERY], key, value, beta, options, NULL);
}

static Pass pass(const BenchOptions *options, const Sizes *s, bool alone, bool keep)
{
    const int rank = alone ? 0 : dist_rank(), ranks = alone ? 1 : dist_ranks();
    const int64_t first = first_position_of(s, rank, ranks);
    const int64_t count = first_position_of(s, rank + 1, ranks) - first;
    Tape *tape = bench_tape(options);
    Tensor *x[INPUTS] = { NULL };
    for (int i = 0; i < INPUTS; i++)
        if (i != LOG_DECAY || s->decay)
            x[i] = input(tape, s, i, first, count);
    device_reset_peak(options->device);
    const DistTraffic before = dist_traffic();
    const double start = bench_seconds();
    Tensor *out = s->delta ? delta_rule(tape, x, ranks > 1) : attention(tape, x, ranks > 1);
    device_wait(options->device);
    Pass p = { .forward = bench_seconds() - start };
    tape_backward_from(tape, out, x[UPSTREAM]);
    device_wait(options->device);
    p.both = bench_seconds() - start;
    p.peak = device_memory(options->device).peak;
    p.traffic = dist_traffic();
    p.traffic.bytes -= before.bytes;
    p.traffic.calls -= before.calls;
    for (int i = 0; keep && i < RESULTS; i++) {
        p.results[i] = allocate(count * s->H * s->D);
        tensor_read(i == OUT ? out : tensor_gradient(x[i - 1]), p.results[i]);
    }
    tape_free(tape);
    device_release_cached(options->device);
    return p;
}

static void pass_free(Pass *p)
{
    for (int i = 0; i < RESULTS; i++)
        free(p->results[i]);
}

/* ------------------------------------------------------------------------------------- the check
 * The ranks' results meet in a file, [RESULTS, N, H, D]. */
static FILE *open_at(const char *path, const char *mode, int64_t element)
{
    FILE *file = fopen(path, mode);
    if (!file || fseek(file, (long)element * (long)sizeof(Real), SEEK_SET))
        fail("the file of --check cannot be opened");
    return file;
}

static void write_results(const char *path, const Sizes *s, const Pass *p)
{
    const int64_t row = s->H * s->D, first = first_position_of(s, dist_rank(), dist_ranks());
    const int64_t count = first_position_of(s, dist_rank() + 1, dist_ranks()) - first;
    if (dist_rank() == 0)
        fclose(open_at(path, "wb", 0));
    dist_any(false); /* the file exists */
    for (int i = 0; i < RESULTS; i++) {
        FILE *file = open_at(path, "r+b", (i * s->N + first) * row);
        const size_t n = (size_t)(count * row);
        if (fwrite(p->results[i], sizeof(Real), n, file) != n || fclose(file))
            fail("the file of --check cannot be written");
    }
    dist_any(false); /* all parts are written */
}

/* max_i |a_i - b_i| / |b_i| over positions i, and the mean */
static void compare(const char *path, const Sizes *s, const Pass *one)
{
    static const char *const names[] = { "out", "dq", "dk", "dv" };
    const int64_t row = s->H * s->D;
    Real *a = allocate(row);
    for (int i = 0; i < RESULTS; i++) {
        FILE *file = open_at(path, "rb", i * s->N * row);
        double worst = 0, sum = 0;
        for (int64_t n = 0; n < s->N; n++) {
            const Real *b = one->results[i] + n * row;
            double difference = 0, size = 0;
            if (fread(a, sizeof(Real), (size_t)row, file) != (size_t)row)
                fail("the file of --check cannot be read");
            for (int64_t k = 0; k < row; k++) {
                difference += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
                size += (double)b[k] * (double)b[k];
            }
            const double error = size > 0 ? sqrt(difference / size) : difference;
            worst = error > worst || error != error ? error : worst;
            sum += error;
        }
        printf("%-3s per position: max relative error %.2g, mean %.2g\n", names[i], worst,
               sum / (double)s->N);
        fclose(file);
    }
    free(a);
}

/* ----------------------------------------------------------------------------------------- main */
static void print_pass(const BenchOptions *options, const Sizes *s, const Pass *p)
{
    const int ranks = dist_ranks();
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    double peaks[2 * MAX_RANKS] = { 0 };
    peaks[2 * dist_rank()] = (double)p->peak / 1e6;
    peaks[2 * dist_rank() + 1] = (double)usage.ru_maxrss / 1e3;
    dist_sum(peaks, 2 * ranks);
    if (dist_rank() > 0)
        return;
    printf("%d ranks, %lld positions, %s, %lld heads of %lld x %lld, %s%s%s, %s each\n", ranks,
           (long long)s->N, s->delta ? "delta rule" : "linear attention", (long long)s->H,
           (long long)s->D, (long long)s->D, sizeof(Real) == 8 ? "double" : "float",
           s->decay ? ", decay" : "", s->uneven ? ", uneven parts" : "", bench_where(options).text);
    printf("forward %.0f ms, both %.0f ms on rank 0\n", p->forward * 1e3, p->both * 1e3);
    for (int r = 0; r < ranks; r++)
        printf("rank %d: %lld positions, peak %.1f MB of tensors, %.0f MB of the process\n", r,
               (long long)(first_position_of(s, r + 1, ranks) - first_position_of(s, r, ranks)),
               peaks[2 * r], peaks[2 * r + 1]);
    printf("sent per rank, layer and head: %.0f bytes in %lld exchanges\n",
           (double)p->traffic.bytes / (double)s->H, (long long)p->traffic.calls);
}

int main(int argc, char **argv)
{
    dist_start();
    Sizes s = { .N = 1048576, .H = 4, .D = 32 };
    const char *check = NULL;
    const BenchOption more[] = {
        { "positions", "positions of the sequence", &s.N, 1, NULL },
        { "heads", "number of heads", &s.H, 1, NULL },
        { "size", "elements of queries, keys and values, a multiple of 4", &s.D, 4, NULL },
        { "decay", "with a log decay of -1/1024", &s.decay, BENCH_FLAG, NULL },
        { "delta-rule", "instead of causal linear attention", &s.delta, BENCH_FLAG, NULL },
        { "uneven", "rank r has r + 1 shares of the positions", &s.uneven, BENCH_FLAG, NULL },
        { "check", "compares with one process, through this file", NULL, 0, &check },
        { 0 },
    };
    BenchOptions options = bench_begin_with(argc, argv, "a sequence over processes", more);
    if (dist_ranks() > MAX_RANKS)
        fail("there are more ranks than the expected 64 at most");
    if (s.D % 4)
        fail("--size is no multiple of 4");
    dist_sequence(dist_ranks());
    Pass p = pass(&options, &s, false, check != NULL);
    print_pass(&options, &s, &p);
    if (check) {
        write_results(check, &s, &p);
        pass_free(&p);
        if (dist_rank() == 0) {
            Pass one = pass(&options, &s, true, true);
            printf("one process: both %.0f ms, peak %.1f MB of tensors\n", one.both * 1e3,
                   (double)one.peak / 1e6);
            compare(check, &s, &one);
            pass_free(&one);
            remove(check);
        }
        dist_any(false); /* rank 0 has compared */
    }
    bench_end(&options);
    dist_finish();
    return 0;
}
