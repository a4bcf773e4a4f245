/* Feature maps of linear attention on the copy task: loss against steps, and the share of features
 * whose gradient is zero. Katharopoulos et al. 2020, section 3.2.1, prefer elu(x) + 1 to relu(x),
 * whose gradient is 0 for all x < 0. Here:
 *   zero   the share of the elements of queries and keys at which phi' is 0
 *   dead   the share of their columns, of all layers, at which it is 0 in all positions of a batch
 * The model and its training are copy_task's preset `quick`, of sequences w 0 w of equal length. */
#include "bench/figure.h"

#include <math.h>
#include <stdlib.h>

enum { LAYERS = 2, HEADS = 6, HEAD_DIM = 16, WIDTH = HEADS * HEAD_DIM, FEED_FORWARD = 256 };
enum { BATCH = 16, HALF = 31, LENGTH = 2 * HALF + 1, SYMBOLS = 10, EVERY = 50 };

static const struct {
    const char *name, *color;
    FeatureMap features;
} maps[] = {
    { "elu+1", "#2166ac", FEATURE_MAP_ELU_PLUS_ONE },
    { "relu", "#b2182b", FEATURE_MAP_RELU },
    { "softplus", "#1b7837", FEATURE_MAP_SOFTPLUS },
};
enum { MAPS = sizeof maps / sizeof *maps };

typedef struct Model {
    Params *params;
    FeatureMap features;
    Embedding embedding; /* [SYMBOLS + 1, WIDTH / 2] */
    Tensor *positions;   /* [LENGTH, WIDTH / 2] */
    Transformer transformer;
    Linear head;
    Optimizer *optimizer;
    Tape *tape;
    Tensor *tokens, *targets, *mask, *loss; /* [BATCH, LENGTH]; the last step's */
} Model;

static Model model_new(const BenchOptions *options, FeatureMap features, uint64_t seed,
                       int64_t steps)
{
    Model m = { .params = params_new(options->device, seed), .tape = bench_tape(options) };
    m.features = features;
    m.embedding = nn_embedding(m.params, "embedding", SYMBOLS + 1, WIDTH / 2);
    m.positions = nn_sinusoidal_positions(m.params, LENGTH, WIDTH / 2);
    TransformerConfig transformer = { .layers = LAYERS, .heads = HEADS, .head_dim = HEAD_DIM };
    transformer.feed_forward = FEED_FORWARD;
    transformer.attention =
        nn_causal_linear_attention(m.params, (CausalLinearConfig){ .features = features });
    m.transformer = nn_transformer(m.params, "transformer", transformer);
    m.head = nn_linear(m.params, "head", WIDTH, SYMBOLS + 1);
    AdamConfig config = optim_adam_config(4e-3);
    config.schedule = optim_drops(0.1, 1, (const int64_t[]){ steps * 4 / 5 });
    m.optimizer = optim_radam(m.params, config);
    m.tokens = tape_persistent_i32(m.tape, shape(BATCH, LENGTH));
    m.targets = tape_persistent_i32(m.tape, shape(BATCH, LENGTH));
    m.mask = tape_persistent(m.tape, shape(BATCH, LENGTH));
    return m;
}

static void model_free(Model *m)
{
    tape_free(m->tape);
    optim_free(m->optimizer);
    params_free(m->params);
}

/* The batch of a step: w 0 w, of whose second half each symbol is predicted. */
static void write_batch(const Model *m, uint64_t seed, int64_t step)
{
    int32_t tokens[BATCH][LENGTH], targets[BATCH][LENGTH];
    Real mask[BATCH][LENGTH];
    Random random = random_new(seed, random_stream("copies"));
    random.counter = (uint64_t)step << 32;
    for (int b = 0; b < BATCH; b++) {
        for (int i = 0; i < LENGTH; i++)
            tokens[b][i] = i < HALF    ? (int32_t)random_integer(&random, 1, SYMBOLS + 1)
                           : i == HALF ? 0
                                       : tokens[b][i - HALF - 1];
        for (int i = 0; i < LENGTH; i++) {
            targets[b][i] = i + 1 < LENGTH ? tokens[b][i + 1] : 0;
            mask[b][i] = i >= HALF && i + 1 < LENGTH;
        }
    }
    tensor_write_i32(m->tokens, tokens[0]);
    tensor_write_i32(m->targets, targets[0]);
    tensor_write(m->mask, mask[0]);
}

static Tensor *embed(const Model *m)
{
    Tensor *x = nn_embedding_forward(m->tape, &m->embedding, m->tokens);
    Tensor *positions = op_broadcast_to(m->tape, m->positions, x->shape);
    return op_concat(m->tape, (Tensor *[]){ x, positions }, 2, -1);
}

static void step(void *context)
{
    Model *m = context;
    Tensor *x = nn_transformer_forward(m->tape, &m->transformer, embed(m), (AttentionOptions){ 0 });
    Tensor *logits = nn_linear_forward(m->tape, &m->head, x);
    m->loss = op_cross_entropy(m->tape, logits, m->targets, m->mask);
    tape_backward(m->tape, m->loss);
    params_clip_gradients(m->params, 1);
    optim_step(m->optimizer);
}

/* phi'(x) == 0 in float32 */
static bool has_no_slope(FeatureMap features, Real x)
{
    return features == FEATURE_MAP_RELU ? x <= 0 : (float)exp(fmin((double)x, 0)) == 0;
}

typedef struct Shares {
    double zero, dead;
} Shares;

/* Of the queries and keys of a layer's input x. */
static void count_layer(const Model *m, const Attention *attention, Tensor *x, Shares *sums)
{
    enum { ROWS = BATCH * LENGTH, COLUMNS = 2 * WIDTH, STRIDE = 3 * WIDTH };
    static Real all[ROWS * STRIDE]; /* queries, keys, values */
    tensor_read(nn_linear_forward(m->tape, &attention->input, x), all);
    for (int c = 0; c < COLUMNS; c++) {
        int zero = 0;
        for (int r = 0; r < ROWS; r++)
            zero += has_no_slope(m->features, all[r * STRIDE + c]);
        sums->zero += (double)zero / ROWS / COLUMNS / LAYERS;
        sums->dead += (zero == ROWS) / (double)COLUMNS / LAYERS;
    }
}

static Shares count(const Model *m)
{
    Shares shares = { 0 };
    tape_reset(m->tape);
    tape_set_recording(m->tape, false);
    Tensor *x = embed(m);
    for (int i = 0; i < LAYERS; i++) {
        count_layer(m, &m->transformer.layer[i].attention, x, &shares);
        x = nn_transformer_layer_forward(m->tape, &m->transformer.layer[i], x,
                                         (AttentionOptions){ 0 });
    }
    tape_set_recording(m->tape, true);
    tape_reset(m->tape);
    return shares;
}

/* Writes a row per EVERY steps: the mean of their losses, and the shares after them. */
static void train(const BenchOptions *options, int map, uint64_t seed, int64_t steps, FILE *table)
{
    Model m = model_new(options, maps[map].features, seed, steps);
    double loss = 0;
    Shares shares = { 0 };
    for (int64_t i = 1; i <= steps; i++) {
        write_batch(&m, seed, i);
        tape_replay(m.tape, step, &m);
        loss += tensor_item(m.loss) / EVERY;
        if (i % EVERY)
            continue;
        shares = count(&m);
        fprintf(table, "%s,%llu,%lld,%.6g,%.6g,%.6g\n", maps[map].name, (unsigned long long)seed,
                (long long)i, loss, shares.zero, shares.dead);
        if (i < steps)
            loss = 0;
    }
    printf("%-9s seed %llu: loss %.5f, gradients of 0 %5.1f %%, dead features %5.1f %%\n",
           maps[map].name, (unsigned long long)seed, loss, 100 * shares.zero, 100 * shares.dead);
    fflush(stdout);
    model_free(&m);
}

/* Side by side the loss and the dead features: the mean of the seeds, in a band that holds them. */
static void draw(const char *table, const char *output, const char *program)
{
    FILE *gnuplot = figure_gnuplot(output, program, table, "csv", 900, 400);
    if (!gnuplot)
        return;
    fprintf(gnuplot,
            "last = system(\"awk -F, 'NF == 6 && $3 + 0 > last { last = $3 + 0 } END { print last "
            "+ 0 }' "
            "<\\\"$TABLE\\\"\") + 0\n"
            "if (!last) { print system('printf %%s \"$TABLE\"').' has no row of this figure'; "
            "exit status 1 }\n"
            "bands(name, value) = \"<echo '$\".name.\" << BANDS'; awk -F, -v OFS=, 'NF == 6 && "
            "$2 + 0 > 0 { print $1, $2, $3, \".value.\" }' <\\\"$TABLE\\\" | "
            "awk -f bench/bands.awk; echo BANDS\"\n"
            "load bands('loss', '$4')\nload bands('dead', '100 * $6')\n"
            "set xtics last / 4\n"
            "set xlabel 'steps'\n"
            "set multiplot layout 1,2 title 'Feature maps of linear attention: the copy task'\n");
    for (int panel = 0; panel < 2; panel++) {
        const char *block = panel ? "dead" : "loss";
        fprintf(gnuplot, panel ? "unset logscale\nunset key\nset format y '%%g'\nset yrange [0:*]\n"
                                 "set ylabel 'dead features, %%'\nplot "
                               : "set logscale y\nset format y '10^{%%T}'\nset ylabel 'loss, nats "
                                 "per symbol'\nplot ");
        for (int i = 0; i < MAPS; i++)
            fprintf(gnuplot,
                    "$%s index '%s' using 1:3:4 with filledcurves fillstyle transparent solid 0.2 "
                    "noborder linecolor '%s' notitle, ",
                    block, maps[i].name, maps[i].color);
        for (int i = 0; i < MAPS; i++)
            fprintf(gnuplot,
                    "$%s index '%s' using 1:2 with lines linewidth 2 linecolor '%s' title '%s', ",
                    block, maps[i].name, maps[i].color, maps[i].name);
        fprintf(gnuplot, "\n");
    }
    fprintf(gnuplot, "unset multiplot\n");
    figure_close(output, gnuplot);
    printf("%s.svg\n", output);
}

int main(int argc, char **argv)
{
    static int64_t steps = 4000, seeds = 3;
    static const char *output = "feature_maps", *drawn;
    const BenchOption more[] = {
        { "steps", "of training", &steps, EVERY, NULL },
        { "seeds", "runs per feature map", &seeds, 1, NULL },
        { "output", "write TEXT.csv and TEXT.svg", NULL, 0, &output },
        { "draw", "no training: draw the SVG of --output from this table (TEXT.csv)", NULL, 0,
          &drawn },
        { 0 },
    };
    BenchOptions options =
        bench_begin_with(argc, argv, "feature maps of linear attention on the copy task", more);
    if (drawn) {
        draw(drawn, output, argv[0]);
        return EXIT_SUCCESS;
    }
    char path[4096];
    FILE *table = figure_open(output, "csv", path);
    fprintf(table, "features,seed,step,loss,zero,dead\n");
    for (int i = 0; i < MAPS; i++)
        for (int64_t seed = 1; seed <= seeds; seed++)
            train(&options, i, (uint64_t)seed, steps, table);
    figure_close_table(table, path);
    draw(path, output, argv[0]);
    bench_end(&options);
    return EXIT_SUCCESS;
}
