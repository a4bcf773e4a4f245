/* Measures which form of causal linear attention is fastest on this CPU, by size, and prints the
 * rows from which FORM_BEST chooses, to put into ops/cpu/attention/linear/tuned.h. */
#include "bench/forms.h"

#include <stdlib.h>

enum { POSITIONS = 1024, HEADS = 8 };

/* The largest length at which the quadratic form is faster than the recurrent one. */
static int longest_quadratic(const BenchOptions *options, int64_t head_dim)
{
    int longest = 0;
    for (int length = 8; length <= 256; length *= 2) {
        const Shape x = shape(POSITIONS / length, length, HEADS, head_dim);
        if (form_time(options, x, FORM_QUADRATIC, 0) < form_time(options, x, FORM_RECURRENT, 0))
            longest = length;
    }
    return longest;
}

static int best_chunk(const BenchOptions *options, int64_t head_dim)
{
    int best = 0;
    double min = 0;
    for (int chunk = 16; chunk <= 256; chunk *= 2) {
        const double time =
            form_time(options, shape(1, POSITIONS, HEADS, head_dim), FORM_CHUNKED, chunk);
        if (!best || time < min) {
            min = time;
            best = chunk;
        }
    }
    return best;
}

/* The smallest length at which several threads process one head faster than one thread does. */
static int shortest_parallel(const BenchOptions *options, int64_t head_dim)
{
    int shortest = 128;
    for (; shortest < 1 << 16; shortest *= 2) {
        const Shape x = shape(1, shortest, 1, head_dim);
        if (form_time(options, x, FORM_CHUNK_PARALLEL, 0) <
            form_time(options, x, FORM_RECURRENT, 0))
            break;
    }
    return shortest;
}

static void print_row(const BenchOptions *options, int columns)
{
    const int threads = device_threads();
    device_set_threads(1);
    const int quadratic = longest_quadratic(options, columns);
    const int chunk = best_chunk(options, columns);
    device_set_threads(threads);
    const int parallel = shortest_parallel(options, columns);
    printf("    { %d, %d, %d, %d },\n", columns, quadratic, chunk, parallel);
    fflush(stdout);
}

#if defined(__AVX512F__)
static const char vectors[] = "512 bits";
#elif defined(__AVX__)
static const char vectors[] = "256 bits";
#else
static const char vectors[] = "128 bits";
#endif

int main(int argc, char **argv)
{
    BenchOptions options =
        bench_begin(argc, argv, "the best form of causal linear attention by sizes");
    printf("causal linear attention, %s, vectors of %s: up to this many columns, maximum length of "
           "the\nquadratic form, chunk, minimum length for threads to share a head\n",
           bench_where(&options).text, vectors);
    for (int columns = 16; columns <= 256; columns *= 2)
        print_row(&options, columns);
    bench_end(&options);
    return EXIT_SUCCESS;
}
