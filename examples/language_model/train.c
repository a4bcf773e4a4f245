#include "examples/language_model/convert.h"
#include "examples/shared/program.h"
#include "examples/shared/training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The state of a run. */
typedef struct Run {
    const LanguageOptions *options;
    const Given *given;
    bool split; /* the held-out text is the last part of the training text */
    Training training;
    Vocabulary vocabulary;
    Tokens training_text, held_out;
    Model model;
    Teacher *teacher;                /* of --match, or NULL */
    Batch batch;                     /* of training */
    Tensor *tokens, *targets, *loss; /* [B, context], [B, context], a scalar */
    Loss update;   /* of the micro-batches of this update, but the last one's nats */
    double best;   /* the lowest held-out loss, in nats */
    int64_t worse; /* evaluations since then */
} Run;

/* ---------------------------------------------------------------------------------------- steps */

/* Whether the step, from 1 on, is one of the first that --match has. */
static bool matches(const Run *run, int64_t step)
{
    return step <= run->options->match;
}

/* Before this run's first step and before the first one after those that match: freezes weights, or
 * unfreezes them. */
static void choose_weights(Run *run, int64_t step)
{
    if (!run->options->match || (step != run->training.first && step != run->options->match + 1))
        return;
    tape_reset(run->training.tape); /* and the graph of a captured step */
    convert_train_attention(run->training.params, matches(run, step));
}

/* The number of the micro-batch determines its windows, so checkpoints need not save a position in
 * the text, and micro-batches of any size make up the same updates. */
static void next_batch(void *context, int64_t number)
{
    Run *run = context;
    const int64_t size = run->options->common.batch, parts = run->training.micro_batches;
    const DistPart part = run->training.part;
    Random random =
        random_new((uint64_t)run->options->common.seed, random_stream("language model windows"));
    random.counter = (uint64_t)((number - 1) * size);
    for (int64_t b = 0; b < part.first + part.count; b++) {
        const int64_t start =
            random_integer(&random, 0, run->training_text.count - run->batch.length);
        if (b >= part.first)
            batch_set(&run->batch, b - part.first, &run->training_text, start);
    }
    if ((number - 1) % parts > 0) {
        run->update.nats += tensor_item(run->loss);
    } else {
        run->update = (Loss){ 0 };
        choose_weights(run, (number - 1) / parts + 1);
    }
    run->update.bytes += batch_bytes(&run->batch, &run->vocabulary);
    run->update.targets += part.count * run->batch.length;
    tensor_write_i32(run->tokens, run->batch.tokens);
    tensor_write_i32(run->targets, run->batch.targets);
}

/* The micro-batch's part of the mean over the update's tokens; of the error of attention in the
 * first steps of --match. */
static Tensor *loss_of(void *context)
{
    Run *run = context;
    Tape *tape = run->training.tape;
    if (matches(run, run->training.done))
        run->loss = teacher_error(tape, run->teacher, &run->model, run->tokens);
    else
        run->loss = op_cross_entropy(tape, model_forward(tape, &run->model, run->tokens),
                                     run->targets, NULL);
    if (run->training.micro_batches > 1)
        run->loss = op_scale(tape, run->loss, 1.0 / (double)run->training.micro_batches);
    return run->loss;
}

/* The sum over the ranks. */
static Loss sum_over_ranks(Loss loss)
{
    double sums[] = { loss.nats, (double)loss.targets, (double)loss.bytes };
    dist_sum(sums, 3);
    return (Loss){ sums[0], (int64_t)sums[1], (int64_t)sums[2] };
}

/* The held-out loss of windows side by side, until `tokens` targets are reached. The ranks take
 * turns. */
static Loss evaluate(const Run *run, int64_t tokens)
{
    const bool was_training = optim_set_training(run->training.optimizer, false);
    const int64_t length = run->batch.length;
    int64_t turn = 0;
    Tape *tape = run->training.scoring;
    Batch batch = batch_new(run->options->common.batch, length);
    Loss loss = { 0 };
    for (int64_t first = 0; first + 1 < run->held_out.count && first < tokens;
         first += batch.size * length) {
        if (turn++ % dist_ranks() != dist_rank())
            continue;
        for (int64_t b = 0; b < batch.size; b++)
            batch_set(&batch, b, &run->held_out, first + b * length);
        const Shape all = shape(batch.size, length);
        Tensor *logits = model_forward(tape, &run->model, tape_input_i32(tape, batch.tokens, all));
        Tensor *mean = op_cross_entropy(tape, logits, tape_input_i32(tape, batch.targets, all),
                                        tape_input(tape, batch.weights, all));
        loss.nats += (double)batch_targets(&batch) * tensor_item(mean);
        loss.targets += batch_targets(&batch);
        loss.bytes += batch_bytes(&batch, &run->vocabulary);
        tape_reset(tape);
    }
    batch_free(&batch);
    optim_set_training(run->training.optimizer, was_training);
    return sum_over_ranks(loss);
}

/* A sample between two lines of the progress, by the scoring tape in float32. */
static void print_sample(const Run *run)
{
    Tape *tape = run->training.scoring;
    const bool was_training = optim_set_training(run->training.optimizer, false);
    const Precision precision = tape_precision(tape);
    tape_set_precision(tape, PRECISION_FLOAT32);
    Generator *generator = generator_new(&run->model, tape, (GenerationConfig){ 0 });
    Sentence sentence;
    printf("\n");
    if (!generate(generator, &run->vocabulary, "", 200, (Sampling){ .temperature = 0.8 },
                  &sentence))
        fail(EXIT_FAILURE, "%s", sentence.text);
    generator_free(generator);
    tape_set_precision(tape, precision);
    optim_set_training(run->training.optimizer, was_training);
}

/* --------------------------------------------------------------------------------------- report */

static bool score_step(void *context, bool due, double *values)
{
    Run *run = context;
    const LanguageOptions *options = run->options;
    const int64_t done = run->training.done;
    values[0] = values[1] = values[2] = values[3] = NAN;
    if (options->evaluate_every && done % options->evaluate_every == 0) {
        const Loss loss = evaluate(run, options->evaluate_tokens);
        values[1] = loss_bits(loss);
        values[2] = loss_nats(loss);
        run->worse = values[2] < run->best ? 0 : run->worse + 1;
        run->best = fmin(run->best, values[2]);
        run->training.enough = options->patience && run->worse >= options->patience;
    }
    if (options->sample_every && done % options->sample_every == 0 && !options->common.quiet)
        print_sample(run);
    if (!due && isnan(values[1]))
        return false;
    Loss update = run->update;
    update.nats = (update.nats + tensor_item(run->loss)) * (double)update.targets;
    update = sum_over_ranks(update);
    if (matches(run, done))
        values[3] = loss_nats(update);
    else
        values[0] = loss_bits(update);
    return true;
}

static ReportConfig report_config(const Run *run)
{
    const bool match = run->options->match > 0;
    return (ReportConfig){
        .header = match ? "step,training_bits,heldout_bits,heldout_nats,attention_error,"
                          "learning_rate,seconds"
                        : "step,training_bits,heldout_bits,heldout_nats,learning_rate,seconds",
        .count = match ? 5 : 4,
        .values = { { .progress = "training %.3f bits",
                      .label = "bits per byte",
                      .settings = "set yrange [0:]",
                      .title = "training" },
                    { .progress = "  held out %.3f bits", .title = "held out", .sparse = true },
                    { .progress = ", %.3f nats" },
                    { .progress = match ? "  error of attention %.3f" : NULL } },
        .items =
            (double)(run->options->common.batch * run->batch.length * run->training.micro_batches),
        .unit = "tokens",
    };
}

static void print_loss(const char *what, const Run *run, Loss loss, double seconds)
{
    printf("%s heldout_bits=%.6g heldout_nats=%.6g heldout_tokens=%lld steps=%lld seconds=%.2f\n",
           what, loss_bits(loss), loss_nats(loss), (long long)loss.targets,
           (long long)run->training.done, seconds);
}

/* ------------------------------------------------------------------------------------- programs */

static bool is_schedule_free(const LanguageOptions *options)
{
    return !strcmp(options->optimizer, "schedule-free");
}

static int train(Run *run)
{
    Training *training = &run->training;
    const TrainingOptions *common = training->options;
    training_run(training, report_config(run));
    const Loss loss = evaluate(run, stopped_by ? run->options->evaluate_tokens : INT64_MAX);
    print_loss(training->enough ? "final (patience)" : "final", run, loss, training->seconds);
    char title[160];
    snprintf(title, sizeof title,
             "A language model of %s: causal %s attention, %lld layers, %lld heads of %lld",
             run->options->tokens, common->attention, (long long)common->layers,
             (long long)common->heads, (long long)common->head_dim);
    return training_end(training, title,
                        "%.3f bits per byte, %.3f nats per token on the held-out text",
                        loss_bits(loss), loss_nats(loss));
}

static int measure(Run *run)
{
    const double start = now();
    const Loss loss = evaluate(run, INT64_MAX);
    print_loss("evaluation", run, loss, now() - start);
    return EXIT_SUCCESS;
}

/* From the checkpoint, from --vocabulary, or of the training text's characters. */
static void find_vocabulary(Run *run)
{
    const LanguageOptions *options = run->options;
    const TokenKind kind = (TokenKind)choice_index(token_kind_names, options->tokens);
    const TrainingOptions *common = &options->common;
    const char *checkpoint = common->load     ? common->load
                             : common->resume ? common->resume
                                              : options->from;
    Vocabulary given = { 0 };
    Sentence sentence;
    bool ok = true;
    if (options->vocabulary && !vocabulary_load(&given, options->vocabulary, &sentence))
        fail(EXIT_FAILURE, "--vocabulary %s", sentence.text);
    if (options->vocabulary && given.kind != kind)
        fail(BAD_USE, "--vocabulary %s: its tokens are %s, expected %s, as of --tokens",
             options->vocabulary, token_kind_names[given.kind], options->tokens);
    if (checkpoint) {
        ok = model_vocabulary(&run->vocabulary, kind, checkpoint, &sentence);
    } else if (options->vocabulary || kind == TOKENS_BYTES) {
        ok = vocabulary_of_items(&run->vocabulary, kind, options->vocabulary ? given.count : BYTES,
                                 given.items, &sentence);
    } else if (kind == TOKENS_PAIRS) {
        fail(BAD_USE, "--tokens pairs: expected together with --vocabulary FILE, as "
                      "language_model prepare writes it");
    } else {
        Sentence damage;
        const char *path = language_file(run->given, "train");
        Source *source = source_open(path, &sentence);
        ok = source && vocabulary_learn(&run->vocabulary, kind, 0, source, &sentence);
        if (source && !source_close(source, &damage))
            fail(EXIT_FAILURE, "%s", damage.text);
    }
    if (!ok)
        fail(EXIT_FAILURE, "%s", sentence.text);
    const int64_t n = vocabulary_items(kind, run->vocabulary.count);
    if (checkpoint && options->vocabulary &&
        (given.count != run->vocabulary.count ||
         (n > 0 && memcmp(given.items, run->vocabulary.items, (size_t)n * sizeof *given.items))))
        fail(BAD_USE,
             "--vocabulary %s: expected the vocabulary of the checkpoint %s, which differs",
             options->vocabulary, checkpoint);
    vocabulary_free(&given);
}

static Tokens read_tokens(const Run *run, const char *name)
{
    Tokens tokens;
    Sentence sentence;
    if (!tokens_read(&tokens, &run->vocabulary, language_file(run->given, name), &sentence))
        fail(EXIT_FAILURE, "%s", sentence.text);
    return tokens;
}

static void read_texts(Run *run)
{
    const LanguageOptions *options = run->options;
    if (run->split || !options->common.evaluate)
        run->training_text = read_tokens(run, "train");
    run->held_out =
        run->split ? tokens_split(&run->training_text, options->split) : read_tokens(run, "valid");
    if (!options->common.evaluate && run->training_text.count <= options->context)
        fail(BAD_USE, "--context %lld: expected fewer than the %lld tokens of the training text",
             (long long)options->context, (long long)run->training_text.count);
    if (run->held_out.count < 2)
        fail(EXIT_FAILURE, "the held-out text has %lld tokens, expected 2 or more",
             (long long)run->held_out.count);
}

/* A row per name of --optimizer. */
static Optimizer *new_optimizer(Params *params, const LanguageOptions *options)
{
    static Optimizer *(*const rows[])(Params *, AdamConfig) = { optim_adamw, optim_radam,
                                                                training_muon,
                                                                optim_schedule_free_adamw };
    AdamConfig config = optim_adam_config(options->common.learning_rate);
    config.beta2 = options->beta2;
    config.weight_decay = options->weight_decay;
    if (is_schedule_free(options))
        config.schedule = optim_warm_up(options->warm_up);
    else if (!options->common.evaluate && options->common.steps)
        config.schedule = optim_cosine(options->warm_up, options->common.steps, options->last_rate);
    Optimizer *optimizer = rows[choice_index(optimizer_names, options->optimizer)](params, config);
    optim_set_group(optimizer, "*norm*", 1, 0); /* matrices alone decay */
    optim_set_group(optimizer, "*.bias", 1, 0);
    return optimizer;
}

/* If the next step matches. */
static void load_teacher(Run *run)
{
    const LanguageOptions *options = run->options;
    const int64_t next = run->training.done + 1;
    if (options->common.evaluate || !matches(run, next))
        return;
    if (!options->from)
        fail(BAD_USE, "--resume %s: step %lld is one of --match %lld, expected --from FILE too",
             options->common.resume, (long long)next, (long long)options->match);
    run->teacher =
        teacher_new(params_device(run->training.params), options->from, options, &run->vocabulary);
}

static void run_start(Run *run, const LanguageOptions *options, const Given *given)
{
    const int64_t batch = options->common.batch;
    *run = (Run){ .options = options,
                  .given = given,
                  .split = language_splits(options, given),
                  .best = INFINITY };
    find_vocabulary(run);
    read_texts(run);
    Training *training = &run->training;
    *training = training_new(&language_train_command, &options->common, options->common.steps,
                             (TrainingStep){ run, next_batch, loss_of, score_step });
    if (options->tokens_per_update)
        training->micro_batches = options->tokens_per_update / (batch * options->context);
    run->model = model_new(training->params, options, &run->vocabulary);
    training->optimizer = new_optimizer(training->params, options);
    run->batch = batch_new(training->part.count, options->context);
    const Shape all = shape(training->part.count, options->context);
    run->tokens = tape_persistent_i32(training->tape, all);
    run->targets = tape_persistent_i32(training->tape, all);
    if (options->from && !options->common.resume)
        convert_load(training->params, options->from, options->common.quiet);
    training_load(training);
    load_teacher(run);
}

static void run_free(Run *run)
{
    if (run->held_out.map)
        tokens_free(&run->held_out);
    tokens_free(&run->training_text);
    batch_free(&run->batch);
    teacher_free(run->teacher);
    vocabulary_free(&run->vocabulary);
    training_free(&run->training);
}

/* Checks combinations of options. */
static void check_together(const LanguageOptions *options, const Given *given)
{
    const char *kind = options->common.attention;
    training_check(&options->common, given);
    if (strcmp(kind, "window") && strcmp(kind, "based"))
        options_refuse(given, "window", "--attention %s, which has none", kind);
    if (is_schedule_free(options))
        options_refuse(given, "last-rate", "--optimizer schedule-free, which averages instead");
    const int64_t tokens = options->common.batch * options->context;
    if (options->tokens_per_update % tokens)
        fail(BAD_USE,
             "--tokens-per-update %lld: expected a multiple of --batch %lld times --context "
             "%lld",
             (long long)options->tokens_per_update, (long long)options->common.batch,
             (long long)options->context);
    if (!options->common.evaluate && options->common.steps &&
        options->warm_up >= options->common.steps)
        fail(BAD_USE, "--warm-up %lld: expected fewer than the %lld steps",
             (long long)options->warm_up, (long long)options->common.steps);
    if (options->common.resume && !options->match)
        options_refuse(given, "from", "--resume %s, which has no --match", options->common.resume);
    if (options->match && !options->from && !options->common.resume)
        fail(BAD_USE, "--match %lld: expected together with --from FILE",
             (long long)options->match);
    if (options->patience && !options->evaluate_every)
        fail(BAD_USE, "--patience %lld: expected together with --evaluate-every N",
             (long long)options->patience);
}

int language_train(int argc, char **argv)
{
    LanguageOptions options;
    const Given given = options_parse(&language_train_command, argc, argv, &options);
    if (!options.common.resume && !option_given(&given, "match"))
        options.match = 0; /* a checkpoint has that of its own training */
    check_together(&options, &given);
    Run run;
    run_start(&run, &options, &given);
    const int status = options.common.evaluate ? measure(&run) : train(&run);
    run_free(&run);
    return status;
}
