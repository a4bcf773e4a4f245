/* Measures which form of causal linear attention is fastest on this CPU, by size, and prints the
 * table from which FORM_BEST chooses: `tuned` of ops/cpu/attention/linear/plan.h, to put there.
 *
 * --output NAME: instead the time of the chunked form against the positions per chunk, by length
 * and size of a head, beside FORM_BEST, in NAME.csv and NAME.svg, as in Linear Transformers Are
 * Faster (Buckman and Gelada 2024). */
#include "bench/figure.h"

#include <stdlib.h>

/* For `tuned`; its functions are not called. */
#pragma GCC diagnostic ignored "-Wunused-function"
#include "ops/cpu/attention/linear/plan.h"

enum { POSITIONS = 1024, HEADS = 8 }; /* default sizes of a measurement */

typedef struct Case {
    Params *params;
    Tape *tape;
    Tensor *query, *key, *value, *upstream;
    CausalLinearAttentionOptions options;
} Case;

static void attend(void *context)
{
    Case *c = context;
    Tensor *out = op_causal_linear_attention(c->tape, c->query, c->key, c->value, c->options, NULL);
    tape_backward_from(c->tape, out, c->upstream);
    params_zero_gradients(c->params);
}

/* The minimum time of forward and backward pass on x [B, N, H, D], in milliseconds. */
static double min_time(const BenchOptions *options, Shape x, AttentionForm form, int64_t chunk)
{
    const Initializer normal = { INITIAL_NORMAL, 1 };
    Case c = { .params = params_new(options->device, 1),
               .tape = bench_tape(options),
               .options = { .eps = 1e-6, .form = form, .chunk = chunk } };
    c.query = params_add(c.params, "query", x, normal);
    c.key = params_add(c.params, "key", x, normal);
    c.value = params_add(c.params, "value", x, normal);
    c.upstream = params_add(c.params, "upstream", x, normal);
    tape_use(c.tape, "tune", c.upstream);
    const Timing time = bench_step(options, c.tape, attend, &c);
    tape_free(c.tape);
    params_free(c.params);
    return time.min;
}

/* The largest length at which the quadratic form is faster than the recurrent one. */
static int longest_quadratic(const BenchOptions *options, int64_t head_dim)
{
    int longest = 0;
    for (int length = 8; length <= 256; length *= 2) {
        const Shape x = shape(POSITIONS / length, length, HEADS, head_dim);
        if (min_time(options, x, FORM_QUADRATIC, 0) < min_time(options, x, FORM_RECURRENT, 0))
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
            min_time(options, shape(1, POSITIONS, HEADS, head_dim), FORM_CHUNKED, chunk);
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
        if (min_time(options, x, FORM_CHUNK_PARALLEL, 0) < min_time(options, x, FORM_RECURRENT, 0))
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

static void print_table(const BenchOptions *options)
{
    printf("causal linear attention, %s, vectors of %s: up to this many columns, maximum length of "
           "the\nquadratic form, chunk, minimum length for threads to share a head\n",
           bench_where(options).text, vectors);
    for (int columns = 16; columns <= 256; columns *= 2)
        print_row(options, columns);
}

/* ---------------------------------------------------------------------- time against chunk size */
/* A line of the table. */
typedef struct Row {
    int head_dim, length, chunk; /* chunk 0: FORM_BEST */
    double ms;
    int is_default; /* whether FORM_CHUNKED has this chunk by default */
} Row;

enum { DIMS = 3, MIN_CHUNK = 4, MAX_CHUNK = 256, LENGTH_STEP = 4, MAX_ROWS = 512 };
static const int head_dims[DIMS] = { 32, 64, 128 };
static int64_t shortest = 256, longest = 4096;
static const char *output = NULL, *draw = NULL;

/* The rows, and the device that was measured. */
typedef struct Table {
    Row rows[MAX_ROWS];
    int count;
    char where[64];
} Table;

static const char heading[] = "head_dim,length,chunk,ms,default,where\n";

static FILE *open_table(const char *path, const char *mode)
{
    FILE *file = fopen(path, mode);
    if (!file) {
        perror(path);
        exit(1);
    }
    return file;
}

static void read_table(Table *table, const char *path)
{
    FILE *file = open_table(path, "r");
    char line[256];
    while (table->count < MAX_ROWS && fgets(line, sizeof line, file)) {
        Row *row = &table->rows[table->count];
        if (sscanf(line, "%d,%d,%d,%lf,%d,\"%63[^\"]", &row->head_dim, &row->length, &row->chunk,
                   &row->ms, &row->is_default, table->where) == 6)
            table->count++;
    }
    fclose(file);
    if (table->count == 0) {
        fprintf(stderr, "--draw %s: it has no row of this figure\n", path);
        exit(1);
    }
}

static void write_table(const Table *table, const char *path)
{
    FILE *file = open_table(path, "w");
    fputs(heading, file);
    for (int i = 0; i < table->count; i++) {
        const Row *row = &table->rows[i];
        fprintf(file, "%d,%d,%d,%.6g,%d,\"%s\"\n", row->head_dim, row->length, row->chunk, row->ms,
                row->is_default, table->where);
    }
    if (fclose(file) != 0) {
        perror(path);
        exit(1);
    }
}

static int default_chunk(int head_dim)
{
    int row = 0;
    while (tuned[row].columns < head_dim)
        row++;
    return tuned[row].chunk;
}

static void measure_length(Table *table, const BenchOptions *options, int head_dim, int length)
{
    printf("%4d %6d", head_dim, length);
    for (int chunk = 0; chunk <= MAX_CHUNK && chunk <= length && table->count < MAX_ROWS;
         chunk = chunk ? 2 * chunk : MIN_CHUNK) {
        const AttentionForm form = chunk ? FORM_CHUNKED : FORM_BEST;
        const double ms = min_time(options, shape(1, length, HEADS, head_dim), form, chunk);
        table->rows[table->count++] =
            (Row){ head_dim, length, chunk, ms, chunk == default_chunk(head_dim) };
        printf(" %9.3f", ms);
        fflush(stdout);
    }
    printf("\n");
}

static void measure_chunks(Table *table, const BenchOptions *options)
{
    snprintf(table->where, sizeof table->where, "%s", bench_where(options).text);
    printf("causal linear attention, %d heads, forward and backward, %s, minimum in ms, of the "
           "chunked\nform by positions per chunk\n%4s %6s %9s",
           HEADS, table->where, "D", "N", "best form");
    for (int chunk = MIN_CHUNK; chunk <= MAX_CHUNK; chunk *= 2)
        printf(" %9d", chunk);
    printf("\n");
    for (int i = 0; i < DIMS; i++)
        for (int64_t length = shortest; length <= longest; length *= LENGTH_STEP)
            measure_length(table, options, head_dims[i], (int)length);
}

/* Microseconds per position of each length: $chunkedD_N, $bestD_N and $defaultD_N. */
static void print_blocks(const Table *table, FILE *gnuplot)
{
    static const char *const names[] = { "chunked", "best", "default" };
    for (int i = 0; i < table->count; i++) {
        const Row *first = &table->rows[i];
        for (int block = 0; first->chunk == 0 && block < 3; block++) {
            fprintf(gnuplot, "$%s%d_%d << END\n", names[block], first->head_dim, first->length);
            for (const Row *row = first; row < table->rows + table->count; row++) {
                const double us = 1e3 * row->ms / row->length;
                if (row > first && row->chunk == 0)
                    break;
                if (block == 1 && row == first)
                    fprintf(gnuplot, "%d %.6g\n%d %.6g\n", MIN_CHUNK, us, MAX_CHUNK, us);
                if (block != 1 && row > first && (block == 0 || row->is_default))
                    fprintf(gnuplot, "%d %.6g\n", row->chunk, us);
            }
            fprintf(gnuplot, "END\n");
        }
    }
}

static void draw_panel(const Table *table, FILE *gnuplot, int head_dim)
{
    static const char *const colours[] = { "#2166ac", "#1b7837", "#e08214", "#b2182b", "#762a83" };
    enum { COLOURS = sizeof colours / sizeof *colours };
    int count = 0;
    fprintf(gnuplot, "set title 'heads of %d'\nplot ", head_dim);
    for (int i = 0; i < table->count; i++) {
        const Row *row = &table->rows[i];
        const char *colour = colours[count % COLOURS];
        if (row->head_dim != head_dim || row->chunk != 0)
            continue;
        fprintf(gnuplot,
                "$chunked%d_%d with linespoints linewidth 2 pointtype 7 pointsize 0.6 linecolor "
                "'%s' title 'N = %d', "
                "$best%d_%d with lines linewidth 1.5 dashtype 2 linecolor '%s' title "
                "'N = %d, best form', "
                "$default%d_%d with points pointtype 6 pointsize 1.6 linewidth 2 linecolor '%s' "
                "notitle, ",
                head_dim, row->length, colour, row->length, head_dim, row->length, colour,
                row->length, head_dim, row->length, colour);
        count++;
    }
    fprintf(gnuplot, "NaN with points pointtype 6 pointsize 1.6 linewidth 2 linecolor '#333333' "
                     "title 'chunk by default'\n");
}

static void draw_chunks(const Table *table, const char *program)
{
    FILE *gnuplot = figure_gnuplot(output, program, "csv", 1180, 480);
    if (!gnuplot)
        return;
    print_blocks(table, gnuplot);
    fprintf(gnuplot,
            "set logscale x 2\nset logscale y 10\n"
            "set xrange [%d/1.3:%d*1.3]\nset xtics 4\n"
            "set xlabel 'positions per chunk'\n"
            "set key at screen 0.84,0.8 left top reverse Left samplen 2 spacing 1.2 font ',13'\n"
            "set multiplot layout 1,%d margins 0.085,0.82,0.17,0.79 spacing 0.04,0\n"
            "set label 1 'Causal linear attention in chunks, %d heads, forward and backward' at "
            "screen 0.44,0.955 center font ',17'\n"
            "set label 2 '%s' at screen 0.44,0.895 center textcolor '#555555'\n"
            "set ylabel 'time per position, microseconds'\n",
            MIN_CHUNK, MAX_CHUNK, DIMS, HEADS, table->where);
    for (int i = 0; i < DIMS; i++) {
        draw_panel(table, gnuplot, head_dims[i]);
        fprintf(gnuplot, "unset ylabel\nunset label\nunset key\n");
    }
    fprintf(gnuplot, "unset multiplot\n");
    figure_close(output, gnuplot);
    printf(draw ? "%s.svg\n" : "%s.csv, %s.svg\n", output, output);
}

static void chunks(const BenchOptions *options, const char *program)
{
    Table measured = { .count = 0 }, table = measured;
    char path[4096];
    snprintf(path, sizeof path, "%s.csv", output);
    if (device_is_cuda(options->device)) {
        fprintf(stderr, "--device is %s, expected plain or cpu: on CUDA a chunk has 64 positions\n",
                device_name(options->device));
        exit(2);
    }
    if (!draw) {
        measure_chunks(&measured, options);
        write_table(&measured, path);
    }
    read_table(&table, draw ? draw : path); /* the same digits whenever it is drawn */
    draw_chunks(&table, program);
}

int main(int argc, char **argv)
{
    const BenchOption more[] = {
        { "output", "instead: the time by positions per chunk, in TEXT.csv and TEXT.svg", NULL, 0,
          &output },
        { "draw", "with --output: no measurement, draw TEXT.svg from this table", NULL, 0, &draw },
        { "shortest", "with --output: first length", &shortest, 1, NULL },
        { "longest", "with --output: last length; each is 4 times the previous one", &longest, 1,
          NULL },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "the best form of causal linear attention by sizes", more);
    if (draw && !output) {
        fprintf(stderr, "--draw is %s without --output, expected both\n", draw);
        return 2;
    }
    if (output)
        chunks(&options, argv[0]);
    else
        print_table(&options);
    bench_end(&options);
    return EXIT_SUCCESS;
}
