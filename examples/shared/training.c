#include "examples/shared/training.h"
#include "examples/shared/program.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static Tape *tape_of(Device *device, const TrainingOptions *options, Precision precision)
{
    Tape *tape = tape_new(device);
    tape_set_precision(tape, precision);
    tape_seed(tape, (uint64_t)options->seed);
    return tape;
}

Training training_new(const Command *command, const TrainingOptions *options, int64_t steps,
                      TrainingStep step)
{
    Device *device = training_device(options);
    const Precision precision = training_precision(options, device);
    Training training = { .command = command,
                          .options = options,
                          .step = step,
                          .steps = steps,
                          .micro_batches = 1,
                          .params = params_new(device, (uint64_t)options->seed),
                          .tape = tape_of(device, options, precision),
                          .scoring = tape_of(device, options, precision) };
    tape_set_recording(training.scoring, false);
    tape_set_training(training.scoring, false);
    training.part = dist_part(options->batch);
    if (options->batch < dist_ranks())
        fail(BAD_USE, "--batch %lld: expected at least one for each of the %d ranks",
             (long long)options->batch, dist_ranks());
    return training;
}

void training_free(Training *training)
{
    tape_free(training->tape);
    tape_free(training->scoring);
    optim_free(training->optimizer);
    params_free(training->params);
}

Optimizer *training_muon(Params *params, AdamConfig config)
{
    MuonConfig muon = optim_muon_config(config.learning_rate, config.learning_rate);
    muon.scale = MUON_MATCH_RMS_ADAMW;
    muon.weight_decay = config.weight_decay;
    muon.schedule = config.schedule;
    config.schedule = optim_constant();
    muon.rest = config;
    muon.rest_names[2] = "positions";
    muon.rest_names[3] = "*convolution*"; /* a row of taps per channel is no matrix */
    return optim_muon(params, muon);
}

void training_load(Training *training)
{
    const TrainingOptions *options = training->options;
    const char *checkpoint = options->evaluate ? options->load : options->resume;
    if (options->load && !checkpoint)
        load_weights(training->params, options->load);
    dist_optimizer(training->optimizer); /* copies rank 0's weights to all */
    dist_set_weight(training->params, (double)training->part.count);
    if (checkpoint && !optim_load(training->optimizer, training->tape, checkpoint))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
    training->done = optim_steps(training->optimizer);
    if (options->resume && training->done > training->steps)
        fail(BAD_USE, "%lld steps: expected at least the %lld that %s has completed",
             (long long)training->steps, (long long)training->done, checkpoint);
}

static void update(const Training *training)
{
    const double max_norm = training->options->clip;
    tape_profile_enter(training->profile, "clipping, optim_step");
    if (max_norm > 0 && training->clip_each)
        params_clip_each_gradient(training->params, max_norm);
    else if (max_norm > 0)
        params_clip_gradients(training->params, max_norm);
    optim_step(training->optimizer);
    tape_profile_leave(training->profile);
}

static void step_of(void *context)
{
    const Training *training = context;
    tape_backward(training->tape, training->step.loss(training->step.context));
    update(training);
}

static void next_batch(const Training *training, int64_t batch)
{
    tape_profile_enter(training->profile, "next batch");
    training->step.next_batch(training->step.context, batch);
    tape_profile_leave(training->profile);
}

/* The gradients of the micro-batches add up; each loss is its part of the update's mean. */
static void accumulate_step(Training *training, int64_t step)
{
    for (int64_t i = 1; i <= training->micro_batches; i++) {
        next_batch(training, (step - 1) * training->micro_batches + i);
        tape_reset(training->tape);
        tape_backward(training->tape, training->step.loss(training->step.context));
    }
    update(training);
}

static void train_step(Training *training, int64_t step)
{
    if (training->micro_batches > 1) {
        accumulate_step(training, step);
        return;
    }
    next_batch(training, step);
    if (training->options->eager || dist_ranks() > 1) {
        tape_reset(training->tape);
        step_of(training);
    } else {
        tape_replay(training->tape, step_of, training);
    }
}

/* Around a step. The first one of a run allocates, so the profile begins with the second. */
static void begin_profile(Training *training, int64_t step)
{
    if (training->options->profile && step == training->first + 1)
        training->profile = tape_profile_begin(training->tape);
}

static void end_profile(Training *training, int64_t step)
{
    if (!training->profile || step < training->first + training->options->profile)
        return;
    tape_profile_end(training->profile);
    printf("\nprofile of steps %lld to %lld\n", (long long)training->first + 1, (long long)step);
    tape_profile_print(training->profile, stdout);
    printf("\n");
    tape_profile_free(training->profile);
    training->profile = NULL;
}

/* A full disk or a mount that is lost for a while must not end hours of training. */
static bool save(const Training *training)
{
    FileMetadata texts[OPTIONS_MAX];
    int count = options_texts(training->command, training->options, texts);
    const bool ok =
        optim_save(training->optimizer, training->tape, texts, count, training->options->save);
    if (!ok && dist_rank() == 0)
        caution("step %lld could not be saved: %s", (long long)training->done, tapegrad_error());
    return ok;
}

void training_run(Training *training, ReportConfig config)
{
    const TrainingOptions *options = training->options;
    training->first = training->done + 1;
    if (options->profile && options->profile > training->steps - training->first)
        fail(BAD_USE, "--profile %lld: expected at most %lld, the steps of this run but the first",
             (long long)options->profile, (long long)(training->steps - training->first));
    training->report = report_new(config, options, training->first, training->steps);
    catch_signals();
    const double start = now();
    while (training->done < training->steps && !dist_any(stopped_by) && !training->enough) {
        const int64_t step = ++training->done;
        double learning_rate = optim_learning_rate(training->optimizer);
        begin_profile(training, step);
        train_step(training, step);
        end_profile(training, step);
        Record record = { .step = step };
        bool due = step % options->score_every == 0 || step == training->steps;
        if (training->step.score(training->step.context, due, record.values)) {
            record.values[config.count - 1] = learning_rate;
            record.seconds = now() - start;
            report_step(training->report, record);
        }
        if (options->save_every && step % options->save_every == 0)
            save(training);
    }
    device_wait(params_device(training->params));
    training->seconds = now() - start;
    if (training->done < training->steps && !training->enough && !stopped_by)
        stopped_by = SIGTERM; /* another rank was stopped */
    training->failed = !report_end(training->report);
    training->failed |= options->save && !save(training);
}

void training_mean(double *values, int count, double weight)
{
    if (dist_ranks() == 1)
        return;
    double sums[8];
    for (int i = 0; i < count; i++)
        sums[i] = weight * values[i];
    sums[count] = weight;
    dist_sum(sums, count + 1);
    for (int i = 0; i < count; i++)
        values[i] = sums[i] / sums[count];
}

int training_end(const Training *training, const char *title, const char *format, ...)
{
    enum { START_AGAIN = 75 }; /* EX_TEMPFAIL: the checkpoint is whole */
    const int stopped = dist_ranks() > 1 ? START_AGAIN : 128 + stopped_by;
    char results[128], subtitle[192];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(results, sizeof results, format, arguments);
    va_end(arguments);
    snprintf(subtitle, sizeof subtitle, "seed %lld, step %lld: %s",
             (long long)training->options->seed, (long long)training->done, results);
    const bool drawn = report_draw(training->report, title, subtitle);
    report_free(training->report);
    return training->failed || !drawn ? EXIT_FAILURE : stopped_by ? stopped : EXIT_SUCCESS;
}
