/* Time and memory of attention against the length of the sequence, as Figure 1 of Transformers are
 * RNNs (Katharopoulos et al. 2020): forward and backward pass of one attention operation per
 * sample, at a constant number of tokens per batch, on log-log axes.
 *
 * The inputs are parameters, hence float32. In bf16 the step casts them to bf16, and the output and
 * the gradients back to float32; the measured times include these passes over memory.
 *
 * Memory is the peak including inputs, output and gradients: of the memory pool here; for a peer,
 * of PyTorch's allocator on a GPU, and the growth of the process on the CPU. */
#include "bench/curve.h"

#include <stdlib.h>
#include <string.h>

static int64_t tokens = 65536, heads = 8, head_dim = 32;
static const char *python = NULL;

/* -------------------------------------------------------------------------- one point's process */
typedef struct Case {
    Params *params;
    Tape *tape;
    Tensor *query, *key, *value; /* [B, N, H, D]; key NULL: the queries are the keys */
    Tensor *upstream;
    int64_t rounds; /* of LSH attention */
    Tensor *(*attend)(const struct Case *c);
} Case;

static Tensor *linear(const Case *c)
{
    return op_causal_linear_attention(c->tape, c->query, c->key, c->value,
                                      (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL);
}

static Tensor *softmax(const Case *c)
{
    return op_causal_softmax_attention(c->tape, c->query, c->key, c->value,
                                       (SoftmaxAttentionOptions){ 0 });
}

/* As in Longformer (Beltagy, Peters, Cohan 2020), without its global positions. */
static Tensor *window(const Case *c)
{
    return op_causal_softmax_attention(c->tape, c->query, c->key, c->value,
                                       (SoftmaxAttentionOptions){ .window = 256 });
}

static Tensor *lsh(const Case *c)
{
    return op_causal_lsh_attention(c->tape, c->query, c->value,
                                   (LshAttentionOptions){ .rounds = c->rounds });
}

enum { METHODS = 6 };
static const Line lines[METHODS] = {
    { .name = "softmax", .title = "softmax", .color = "#b2182b" },
    { .name = "lsh-1", .title = "lsh-1", .color = "#7fbc41" },
    { .name = "lsh-4", .title = "lsh-4", .color = "#276419" },
    { .name = "lsh-8", .title = "lsh-8", .color = "#00441b" },
    { .name = "linear", .title = "linear", .color = "#2166ac" },
    { .name = "window-256", .title = "window-256", .color = "#e08214" },
};
static Tensor *(*const attends[METHODS])(const Case *c) = {
    softmax, lsh, lsh, lsh, linear, window
};
static const int64_t rounds[METHODS] = { 0, 1, 4, 8, 0, 0 };

static void run(void *context)
{
    Case c = *(const Case *)context;
    const TensorType type = tape_precision(c.tape) == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    c.query = op_cast(c.tape, c.query, type);
    c.key = c.key ? op_cast(c.tape, c.key, type) : NULL;
    c.value = op_cast(c.tape, c.value, type);
    Tensor *out = op_cast(c.tape, c.attend(&c), TENSOR_REAL);
    tape_backward_from(c.tape, out, c.upstream);
    params_zero_gradients(c.params);
}

static void measure_point(const BenchOptions *options, const Figure *figure)
{
    const int method = figure_method(figure, lines, METHODS);
    const Shape size = shape(figure->batch, figure->length, heads, head_dim);
    const Initializer normal = { INITIAL_NORMAL, 1 };
    Case c = { .params = params_new(options->device, 1),
               .tape = bench_tape(options),
               .rounds = rounds[method],
               .attend = attends[method] };
    c.query = params_add(c.params, "query", size, normal);
    c.key = attends[method] == lsh ? NULL : params_add(c.params, "key", size, normal);
    c.value = params_add(c.params, "value", size, normal);
    c.upstream = tape_persistent(c.tape, size);
    bench_fill(c.upstream, 1);
    const double ms = figure_time(options, c.tape, run, &c);
    figure_print(ms, (double)device_memory(options->device).peak);
    tape_free(c.tape);
    params_free(c.params);
}

/* ---------------------------------------------------------------------------------------- peers */
enum { PEERS = 3 };
static const Line peers[PEERS] = {
    { .name = "torch-softmax", .title = "PyTorch softmax", .color = "#ef8a62", .dashed = true },
    { .name = "torch-chunked",
      .title = "PyTorch linear, chunked",
      .color = "#67a9cf",
      .dashed = true },
    { .name = "fast-transformers",
      .title = "fast-transformers linear",
      .color = "#762a83",
      .dashed = true },
};

static Command peer_command(const BenchOptions *options)
{
    Command command = { "" };
    command_append(&command,
                   "%s bench/peers/attention.py --device %s --precisions %s --seconds %g --threads "
                   "%d --heads %lld --head-dim %lld",
                   command_quoted(python).text, device_name(options->device),
                   bench_precisions[options->precision], options->seconds, device_threads(),
                   (long long)heads, (long long)head_dim);
    return command;
}

/* One line per peer: NAME, or NAME: the reason why it cannot be measured. */
typedef struct List {
    char text[4096];
} List;

static List list_peers(const BenchOptions *options)
{
    Command command = peer_command(options);
    command_append(&command, " --list");
    List list = { "" };
    FILE *pipe = command_run(command);
    size_t used = 0;
    while (pipe && used < sizeof list.text - 1 &&
           fgets(list.text + used, (int)(sizeof list.text - used), pipe))
        used += strlen(list.text + used);
    if (!pipe || pclose(pipe) != 0) {
        fprintf(stderr,
                "--python %s: bench/peers/attention.py failed; run this program in the "
                "repository's root, with an interpreter that has PyTorch\n",
                python);
        exit(1);
    }
    return list;
}

static void measure_peers(Figure *figure, const BenchOptions *options, List list)
{
    for (int i = 0; i < PEERS; i++) {
        const char *name = peers[i].name, *entry = strstr(list.text, name);
        const char *reason = entry ? entry + strlen(name) : ": it is not listed";
        if (*reason == '\n')
            figure_measure(figure, options, peers[i], peer_command(options), tokens);
        else
            printf("%s\n  skipped%.*s\n", name, (int)strcspn(reason, "\n"), reason);
    }
}

/* ----------------------------------------------------------------------------------- the figure */
static void draw(const Figure *figure, const char *program)
{
    FILE *gnuplot = figure_draw(figure, program, 1180, 480);
    if (!gnuplot)
        return;
    fprintf(gnuplot,
            "set multiplot layout 1,2 margins 0.08,0.78,0.17,0.83 spacing 0.1,0\n"
            "set label 1 'Causal attention, forward and backward' at screen 0.44,0.955 center font "
            "',17'\n"
            "set label 2 '%s; %s' at screen 0.44,0.895 center textcolor '#555555'\n"
            "set ylabel 'time per sample, ms'\n",
            figure->sizes, figure->where);
    figure_plot(figure, gnuplot, "2");
    fprintf(gnuplot, "unset label\n"
                     "unset key\n"
                     "set ylabel 'memory per sample, MiB'\n");
    figure_plot(figure, gnuplot, "3");
    fprintf(gnuplot, "unset multiplot\n");
    figure_end(figure, gnuplot);
}

int main(int argc, char **argv)
{
    static Figure figure = { .shortest = 512,
                             .longest = 65536,
                             .limit = 120,
                             .output = "figure1",
                             .length = 512,
                             .batch = 1 };
    const BenchOption more[] = {
        FIGURE_OPTIONS(figure),
        { "tokens", "per batch: at length N it has tokens / N samples", &tokens, 1, NULL },
        { "heads", "number of heads", &heads, 1, NULL },
        { "head-dim", "size of a head", &head_dim, 1, NULL },
        { "python", "an interpreter with PyTorch: also measure the peers", NULL, 0, &python },
        { 0 },
    };
    const Command again = command_again(argc, argv);
    BenchOptions options =
        bench_begin_with(argc, argv, "time and memory of attention against length", more);
    if (figure.method) {
        measure_point(&options, &figure);
        return EXIT_SUCCESS;
    }
    if (figure.draw) {
        figure_read(&figure, lines, METHODS);
        figure_read(&figure, peers, PEERS);
        figure_need_points(&figure);
        print_longest_lengths(&figure);
        draw(&figure, argv[0]);
        return EXIT_SUCCESS;
    }
    snprintf(figure.sizes, sizeof figure.sizes, "%lld heads of %lld, %lld tokens per batch",
             (long long)heads, (long long)head_dim, (long long)tokens);
    const List list = python ? list_peers(&options) : (List){ "" };
    printf("attention forward and backward, H=%lld D=%lld, %s\n", (long long)heads,
           (long long)head_dim, bench_where(&options).text);
    for (int m = 0; m < METHODS; m++)
        figure_measure(&figure, &options, lines[m], again, tokens);
    if (python)
        measure_peers(&figure, &options, list);
    figure_save(&figure, &options);
    bench_end(&options);
    print_longest_lengths(&figure);
    draw(&figure, argv[0]);
    return EXIT_SUCCESS;
}
