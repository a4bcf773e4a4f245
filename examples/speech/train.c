#include "examples/shared/program.h"
#include "examples/shared/training.h"
#include "examples/speech/score.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The state of a run. */
typedef struct Run {
    const SpeechOptions *options;
    Training training;
    Model model;
    Corpus corpus;
    FilterBank *bank;
    Strings strings, validation;
    int64_t steps_per_epoch;
    Batch batch;
    int64_t most_positions; /* of a batch so far */
    Tensor *loss;
    double error; /* of the last validation, in percent, or NaN */
} Run;

/* ---------------------------------------------------------------------------------------- steps */

static double batch_phonemes(const Batch *batch)
{
    double phonemes = 0;
    for (int64_t b = 0; b < batch->size; b++)
        phonemes += batch->target_lengths[b];
    return phonemes;
}

/* The step determines its strings, so checkpoints need not save the position in the data. The
 * strings of a step have the same number of digits, for less padding. */
static void next_batch(void *context, int64_t step)
{
    Run *run = context;
    const int64_t all = run->options->common.batch, size = run->training.part.count;
    const int64_t first = (step - 1) * all + run->training.part.first;
    Utterance *utterances = allocate(size, sizeof *utterances);
    Random random = random_new(run->strings.seed, random_stream("speech digits"));
    random.counter = (uint64_t)step;
    const int64_t digits =
        random_integer(&random, run->options->min_digits, run->options->max_digits + 1);
    for (int64_t b = 0; b < size; b++)
        utterances[b] = string_draw(&run->strings, first + b, digits);
    batch_free(&run->batch);
    run->batch = batch_new(run->options, run->bank, utterances, size);
    if (run->batch.positions > run->most_positions)
        run->most_positions = run->batch.positions;
    for (int64_t b = 0; b < size; b++)
        utterance_free(&utterances[b]);
    free(utterances);
    dist_set_weight(run->training.params, batch_phonemes(&run->batch));
}

/* In nats per phoneme. */
static Tensor *loss_of(void *context)
{
    Run *run = context;
    Tape *tape = run->training.tape;
    const Batch *batch = &run->batch;
    Tensor *lengths, *logits = model_forward(tape, &run->model, batch, &lengths);
    Tensor *targets = tape_input_i32(tape, batch->targets, shape(batch->size, batch->phonemes));
    Tensor *target_lengths = tape_input_i32(tape, batch->target_lengths, shape(batch->size));
    Tensor *losses = op_ctc(tape, logits, targets,
                            (CtcOptions){ .lengths = lengths,
                                          .target_lengths = target_lengths,
                                          .ignore_infeasible = true });
    return run->loss = op_scale(tape, op_sum(tape, losses, ALL_AXES), 1 / batch_phonemes(batch));
}

/* Of several processes rank 0 measures the error, by which all choose the learning rate. */
static double validate(Run *run)
{
    double error = 0;
    if (dist_rank() == 0)
        error = edits_percent(score_strings(&run->validation, run->training.scoring, &run->model,
                                            run->options->strings, 0)
                                  .greedy);
    dist_sum(&error, 1);
    return error;
}

/* At the end of every epoch the validation error goes to the schedule. */
static bool score_step(void *context, bool due, double *values)
{
    Run *run = context;
    const int64_t step = run->training.done;
    const bool validates = step % run->steps_per_epoch == 0;
    values[0] = due || validates ? tensor_item(run->loss) : NAN;
    if (due || validates)
        training_mean(values, 1, batch_phonemes(&run->batch));
    if ((due || validates) && !isfinite(values[0]))
        fail(EXIT_FAILURE, "the loss of step %lld is %g; a lower --learning-rate can help",
             (long long)step, values[0]);
    values[1] = NAN;
    if (validates) {
        values[1] = run->error = validate(run);
        optim_observe(run->training.optimizer, run->error);
    }
    return due || validates;
}

/* --------------------------------------------------------------------------------------- report */

static ReportConfig report_config(const Run *run)
{
    return (ReportConfig){
        .header = "step,loss,validation_error,learning_rate,seconds",
        .count = 3,
        .values = { { .progress = "loss %.4f",
                      .label = "nats per phoneme",
                      .logarithmic = true,
                      .settings = "set format y '%g'" },
                    { .progress = "  validation error %.2f %%",
                      .label = "validation error",
                      .logarithmic = true,
                      .settings = "set format y '%g %%'",
                      .sparse = true } },
        .items = (double)run->options->common.batch,
        .unit = "strings",
    };
}

static int train(Run *run)
{
    Training *training = &run->training;
    Device *device = params_device(training->params);
    device_reset_peak(device);
    training_run(training, report_config(run));
    if (training->done % run->steps_per_epoch || training->done < training->first)
        run->error = validate(run);
    const int64_t steps = training->done - training->first + 1;
    printf("final validation_error=%.4f steps=%lld epochs=%.4g seconds=%.2f "
           "seconds_per_epoch=%.2f most_positions=%lld peak_mib=%.1f\n",
           run->error, (long long)training->done,
           (double)training->done / (double)run->steps_per_epoch, training->seconds,
           steps ? training->seconds / (double)steps * (double)run->steps_per_epoch : 0,
           (long long)run->most_positions, (double)device_memory(device).peak / (1 << 20));
    char title[160];
    snprintf(title, sizeof title, "Strings of spoken digits: %s, %lld layers of %lld",
             model_kind(run->options), (long long)training->options->layers,
             (long long)run->model.head.weight->shape.size[1]);
    return training_end(training, title, "validation error %.2f %% of phonemes", run->error);
}

/* An epoch has one digit per recording to train on, in the mean. */
static int64_t steps_per_epoch(const Corpus *corpus, const SpeechOptions *options)
{
    const double digits =
        (double)((options->min_digits + options->max_digits) * options->common.batch) / 2;
    return (int64_t)ceil((double)corpus->part_count[PART_TRAINING] / digits);
}

static Optimizer *optimizer_new(Params *params, const SpeechOptions *options)
{
    AdamConfig config = optim_adam_config(options->common.learning_rate);
    config.schedule = optim_plateau(0.5, options->patience, 0);
    return !strcmp(options->model, "lstm") ? optim_adam(params, config)
                                           : optim_radam(params, config);
}

static void run_start(Run *run, const SpeechOptions *options, const Given *given)
{
    *run = (Run){ .options = options,
                  .corpus = corpus_read(given, options->data, !strcmp(options->split, "speaker")),
                  .bank = filter_bank_new(),
                  .error = NAN };
    run->steps_per_epoch = steps_per_epoch(&run->corpus, options);
    run->strings = (Strings){ options, &run->corpus, run->bank, PART_TRAINING,
                              (uint64_t)options->common.seed };
    run->validation = run->strings;
    run->validation.part = PART_VALIDATION;
    run->validation.seed = 0; /* equal for all seeds of training */
    const int64_t steps = options->common.steps
                              ? options->common.steps
                              : (int64_t)ceil(options->epochs * (double)run->steps_per_epoch);
    Training *training = &run->training;
    *training = training_new(&speech_train_command, &options->common, steps,
                             (TrainingStep){ run, next_batch, loss_of, score_step });
    const int64_t samples = string_samples(&run->corpus, options->max_digits);
    run->model = model_new(training->params, options, model_positions(options, samples));
    training->optimizer = optimizer_new(training->params, options);
    training_load(training);
}

static void run_free(Run *run)
{
    batch_free(&run->batch);
    filter_bank_free(run->bank);
    corpus_free(&run->corpus);
    training_free(&run->training);
}

int speech_train(int argc, char **argv)
{
    SpeechOptions options;
    Given given = options_parse(&speech_train_command, argc, argv, &options);
    if (!strcmp(options.model, "lstm"))
        options_refuse(&given, "attention features rounds heads head-dim feed-forward",
                       "--model lstm, which has none");
    else
        options_refuse(&given, "hidden", "--model transformer, which has none");
    training_check(&options.common, &given);
    training_check_epochs(&options.common, &given);
    speech_check_data(&options);
    options.common.eager = true; /* utterances differ in length, so a step cannot be replayed */
    Run run;
    run_start(&run, &options, &given);
    int status = train(&run);
    run_free(&run);
    return status;
}
