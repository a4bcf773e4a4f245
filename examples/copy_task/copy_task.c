/* The copy task of Katharopoulos et al. 2020, Transformers are RNNs, section 4.1.1.
 *
 * A sequence of L positions holds n symbols, a separator, the same symbols again, and padding:
 *
 *     position   0    ...  n-1   n   n+1  ...  2n   2n+1 ... L-1
 *     token      w_1  ...  w_n   0   w_1  ...  w_n   0   ...  0        n in [L/4, (L-1)/2)
 *
 * A causal transformer predicts the next token: the target of position i is the token of i + 1.
 * Loss and accuracy are masked to positions n ... 2n-1, whose targets are the copied symbols: these
 * can all be predicted. (The authors' code also counts position n-1, whose target is the separator.
 * The sequence does not determine its position, so even a perfect model misses most of these.) */
#include "examples/copy_task/options.h"
#include "examples/shared/attention.h"
#include "examples/shared/program.h"
#include "examples/shared/training.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ sequences */

/* Sequences in host memory, [size, length] each; the mask selects the positions of the loss. */
typedef struct Batch {
    int64_t size, length;
    int32_t *tokens, *targets;
    Real *mask;
} Batch;

static Batch batch_new(int64_t size, int64_t length)
{
    return (Batch){ .size = size,
                    .length = length,
                    .tokens = allocate(size * length, sizeof(int32_t)),
                    .targets = allocate(size * length, sizeof(int32_t)),
                    .mask = allocate(size * length, sizeof(Real)) };
}

static void batch_free(Batch *batch)
{
    free(batch->tokens);
    free(batch->targets);
    free(batch->mask);
}

/* Draws one sequence into row b; returns its n. */
static int64_t draw_sequence(Batch *batch, int64_t b, int64_t symbols, Random *random)
{
    int64_t length = batch->length, n = random_integer(random, length / 4, (length - 1) / 2);
    int32_t *tokens = batch->tokens + b * length, *targets = batch->targets + b * length;
    Real *mask = batch->mask + b * length;
    for (int64_t i = 0; i < length; i++)
        tokens[i] = 0;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = tokens[n + 1 + i] = (int32_t)random_integer(random, 1, symbols + 1);
    for (int64_t i = 0; i < length; i++) {
        targets[i] = i + 1 < length ? tokens[i + 1] : 0;
        mask[i] = n <= i && i < 2 * n;
    }
    return n;
}

/* Sequences `first` and following of those that the generator draws. */
static void draw_batch(Batch *batch, int64_t first, int64_t symbols, Random random)
{
    for (int64_t i = 0; i < first; i++)
        draw_sequence(batch, 0, symbols, &random);
    for (int64_t b = 0; b < batch->size; b++)
        draw_sequence(batch, b, symbols, &random);
}

/* The positions of the loss. */
static double batch_weight(const Batch *batch)
{
    double weight = 0;
    for (int64_t i = 0; i < batch->size * batch->length; i++)
        weight += (double)batch->mask[i];
    return weight;
}

/* The step determines the Philox counter, so a resumed run draws the same sequences without saving
 * the generator's state. Evaluation uses another stream. */
static Random step_random(uint64_t seed, const char *stream, int64_t step)
{
    Random random = random_new(seed, random_stream(stream));
    random.counter = (uint64_t)step << 32;
    return random;
}

/* ---------------------------------------------------------------------------------------- model */

typedef struct Model {
    Embedding embedding; /* [symbols + 1, width / 2] */
    Tensor *positions;   /* [length, width / 2] */
    Transformer transformer;
    Linear head; /* [width] to [symbols + 1] */
} Model;

static const AttentionKind *attention_of(Params *params, const Options *options)
{
    if (!strcmp(options->common.attention, "softmax"))
        return nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    if (!strcmp(options->common.attention, "lsh"))
        return nn_causal_lsh_attention(params, (LshConfig){ .rounds = options->rounds });
    return attention_linear(params, options->common.features, true, FORM_BEST);
}

static Model model_new(Params *params, const Options *options)
{
    int64_t width = options->common.heads * options->common.head_dim;
    TransformerConfig config = {
        .layers = options->common.layers,
        .heads = options->common.heads,
        .head_dim = options->common.head_dim,
        .feed_forward = options->common.feed_forward,
        .attention = attention_of(params, options),
        .dropout = options->common.dropout,
    };
    return (Model){
        .embedding = nn_embedding(params, "embedding", options->symbols + 1, width / 2),
        .positions = nn_sinusoidal_positions(params, options->length, width / 2),
        .transformer = nn_transformer(params, "transformer", config),
        .head = nn_linear(params, "head", width, options->symbols + 1),
    };
}

/* tokens [B, L]; logits [B, L, symbols + 1] */
static Tensor *model_forward(Tape *tape, const Model *model, Tensor *tokens)
{
    Tensor *x = nn_embedding_forward(tape, &model->embedding, tokens);
    Tensor *positions = op_broadcast_to(tape, model->positions, x->shape);
    x = op_concat(tape, (Tensor *[]){ x, positions }, 2, -1);
    x = nn_transformer_forward(tape, &model->transformer, x, (AttentionOptions){ 0 });
    return nn_linear_forward(tape, &model->head, x);
}

/* ------------------------------------------------------------------------------------- training */

/* The inputs and outputs of a pass on a tape. */
typedef struct Pass {
    Tape *tape;
    Tensor *tokens, *targets, *mask; /* [B, L] */
    Tensor *logits, *loss;           /* of the last step */
} Pass;

/* The state of a run. */
typedef struct Run {
    const Options *options;
    Training training;
    Model model;
    Pass steps, scoring;
    Batch batch;
    Real *logits; /* [B, L, symbols + 1], for the accuracy */
} Run;

typedef struct Score {
    double loss, accuracy;
} Score;

static int64_t best_class(const Real *logits, int64_t classes)
{
    int64_t best = 0;
    for (int64_t c = 1; c < classes; c++)
        best = logits[c] > logits[best] ? c : best;
    return best;
}

/* The fraction of masked positions whose largest logit is the target's. */
static double accuracy(const Batch *batch, const Real *logits, int64_t classes)
{
    int64_t right = 0, all = 0;
    for (int64_t i = 0; i < batch->size * batch->length; i++) {
        if (batch->mask[i] == 0)
            continue;
        right += best_class(logits + i * classes, classes) == batch->targets[i];
        all++;
    }
    return (double)right / (double)all;
}

/* Draws a batch and copies it to the device. */
static void next_batch(Run *run, Pass *pass, const char *stream, int64_t step)
{
    draw_batch(&run->batch, run->training.part.first, run->options->symbols,
               step_random((uint64_t)run->options->common.seed, stream, step));
    tensor_write_i32(pass->tokens, run->batch.tokens);
    tensor_write_i32(pass->targets, run->batch.targets);
    tensor_write(pass->mask, run->batch.mask);
}

/* The loss of the batch; the logits outlive the backward pass, for the accuracy. */
static void forward(const Run *run, Pass *pass)
{
    pass->logits = tensor_keep(model_forward(pass->tape, &run->model, pass->tokens));
    pass->loss = op_cross_entropy(pass->tape, pass->logits, pass->targets, pass->mask);
}

static Score read_score(Run *run, const Pass *pass)
{
    tensor_read(pass->logits, run->logits);
    return (Score){ tensor_item(pass->loss),
                    accuracy(&run->batch, run->logits, run->options->symbols + 1) };
}

static void next_step(void *run, int64_t step)
{
    next_batch(run, &((Run *)run)->steps, "copy_task training", step);
    dist_set_weight(((Run *)run)->training.params, batch_weight(&((Run *)run)->batch));
}

static Tensor *loss_of(void *context)
{
    Run *run = context;
    forward(run, &run->steps);
    return run->steps.loss;
}

static bool score_step(void *context, bool due, double *values)
{
    Run *run = context;
    if (due) {
        Score score = read_score(run, &run->steps);
        values[0] = score.loss;
        values[1] = score.accuracy;
        training_mean(values, 2, batch_weight(&run->batch));
    }
    return due;
}

/* The score over about 1000 fresh sequences, which no training step has seen. */
static Score evaluate(Run *run)
{
    const Options *options = run->options;
    double sums[3] = { 0, 0, 0 }; /* of loss, accuracy, weight */
    for (int64_t batch = 0; batch * options->common.batch < 1000; batch++) {
        next_batch(run, &run->scoring, "copy_task evaluation", batch);
        forward(run, &run->scoring);
        Score score = read_score(run, &run->scoring);
        const double weight = batch_weight(&run->batch);
        sums[0] += weight * score.loss;
        sums[1] += weight * score.accuracy;
        sums[2] += weight;
        tape_reset(run->scoring.tape);
    }
    dist_sum(sums, 3);
    return (Score){ sums[0] / sums[2], sums[1] / sums[2] };
}

/* Prints one fresh sequence and the model's copy; each predicted symbol is the next input. */
static void print_sample(Run *run)
{
    const Options *options = run->options;
    int64_t classes = options->symbols + 1;
    Batch one = batch_new(1, options->length);
    Random random = step_random((uint64_t)options->common.seed, "copy_task sample", 0);
    int64_t n = draw_sequence(&one, 0, options->symbols, &random), right = 0;
    Tape *tape = run->scoring.tape;
    int32_t *copy = one.tokens + n + 1;
    for (int64_t i = 0; i < n; i++)
        copy[i] = 0;
    for (int64_t i = 0; i < n; i++) {
        Tensor *tokens = tape_input_i32(tape, one.tokens, shape(1, options->length));
        tensor_read(model_forward(tape, &run->model, tokens), run->logits);
        copy[i] = (int32_t)best_class(run->logits + (n + i) * classes, classes);
        right += copy[i] == one.tokens[i];
        tape_reset(tape);
    }
    printf("given ");
    for (int64_t i = 0; i < n; i++)
        printf(" %d", one.tokens[i]);
    printf("\nwrote ");
    for (int64_t i = 0; i < n; i++)
        printf(" %d", copy[i]);
    printf("\n%lld of %lld symbols right\n", (long long)right, (long long)n);
    batch_free(&one);
}

/* ------------------------------------------------------------------------------------- programs */

static ReportConfig report_config(const Options *options)
{
    return (ReportConfig){
        .header = "step,loss,accuracy,learning_rate,seconds",
        .count = 3,
        .values = { { .progress = "loss %.4f",
                      .label = "loss",
                      .logarithmic = true,
                      .settings = "set format y '10^{%T}'\nunset mytics" },
                    { .progress = "  accuracy %6.2f %%",
                      .label = "accuracy",
                      .percent = true,
                      .settings = "set format y '%g %%'\nset yrange [0:102]" } },
        .items = (double)(options->common.batch * options->length),
        .unit = "tokens",
        .drop_at = options->drop_at,
    };
}

static int train(Run *run)
{
    Training *training = &run->training;
    const TrainingOptions *common = training->options;
    training_run(training, report_config(run->options));
    Score fresh = evaluate(run);
    if (!common->quiet)
        print_sample(run);
    const int64_t steps = training->done - training->first + 1;
    double tokens = (double)(steps * common->batch * run->batch.length);
    printf("final loss=%.6g accuracy=%.6f steps=%lld seconds=%.2f tokens_per_second=%.0f\n",
           fresh.loss, fresh.accuracy, (long long)training->done, training->seconds,
           steps ? tokens / training->seconds : 0);
    char title[160];
    snprintf(title, sizeof title,
             "Learning to copy: causal %s attention, %lld layers, %lld heads of %lld, length %lld",
             common->attention, (long long)common->layers, (long long)common->heads,
             (long long)common->head_dim, (long long)run->options->length);
    return training_end(training, title, "accuracy %.2f %% on fresh sequences",
                        100 * fresh.accuracy);
}

static int measure(Run *run)
{
    double start = now();
    Score fresh = evaluate(run);
    if (!run->options->common.quiet)
        print_sample(run);
    printf("evaluation loss=%.6g accuracy=%.6f steps=%lld seconds=%.2f\n", fresh.loss,
           fresh.accuracy, (long long)run->training.done, now() - start);
    return EXIT_SUCCESS;
}

static Optimizer *optimizer_new(Params *params, const Options *options)
{
    AdamConfig config = optim_adam_config(options->common.learning_rate);
    config.weight_decay = options->weight_decay;
    if (options->drop_at > 0)
        config.schedule = optim_drops(0.1, 1, &options->drop_at);
    return optim_radam(params, config);
}

static Pass pass_new(Tape *tape, int64_t size, int64_t length)
{
    Shape all = shape(size, length);
    return (Pass){ .tape = tape,
                   .tokens = tape_persistent_i32(tape, all),
                   .targets = tape_persistent_i32(tape, all),
                   .mask = tape_persistent(tape, all) };
}

static void run_start(Run *run, const Options *options)
{
    Training *training = &run->training;
    *training = training_new(&copy_task, &options->common, options->common.steps,
                             (TrainingStep){ run, next_step, loss_of, score_step });
    run->options = options;
    run->steps = pass_new(training->tape, training->part.count, options->length);
    run->scoring = pass_new(training->scoring, training->part.count, options->length);
    run->model = model_new(training->params, options);
    training->optimizer = optimizer_new(training->params, options);
    run->batch = batch_new(training->part.count, options->length);
    run->logits =
        allocate(run->batch.size * run->batch.length * (options->symbols + 1), sizeof(Real));
    training_load(training);
}

static void run_free(Run *run)
{
    batch_free(&run->batch);
    free(run->logits);
    training_free(&run->training);
}

int main(int argc, char **argv)
{
    program_start(argv[0]);
    Options options = copy_task_options(argc, argv);
    Run run;
    run_start(&run, &options);
    int status = options.common.evaluate ? measure(&run) : train(&run);
    run_free(&run);
    return status;
}
