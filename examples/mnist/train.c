#include "examples/mnist/data.h"
#include "examples/mnist/model.h"
#include "examples/shared/program.h"
#include "examples/shared/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The state of a run. */
typedef struct Run {
    const MnistOptions *options;
    Device *device;
    Params *params;
    Model model;
    Optimizer *optimizer;
    Tape *training, *scoring;
    Tensor *tokens, *targets, *loss; /* of training: [B, pixels], [B, pixels], a scalar */
    Idx images, test;
    Order order;
    Batch batch;
    int64_t steps;    /* in total, including those before a resume */
    double test_bits; /* of the last evaluation, or NaN */
} Run;

/* ---------------------------------------------------------------------------------------- steps */

static double bits(double nats)
{
    return nats / log(2);
}

/* The step determines its images, so checkpoints need not save the position in the data. */
static void next_batch(Run *run, int64_t step)
{
    int64_t first = (step - 1) * run->batch.size;
    for (int64_t b = 0; b < run->batch.size; b++)
        batch_set(&run->batch, b, &run->images, order_at(&run->order, first + b));
    tensor_write_i32(run->tokens, run->batch.tokens);
    tensor_write_i32(run->targets, run->batch.targets);
}

static void step_of(void *context)
{
    Run *run = context;
    Tensor *parameters = model_forward(run->training, &run->model, run->tokens);
    run->loss = op_discretized_logistic_mixture(run->training, parameters, run->targets);
    tape_backward(run->training, run->loss);
    if (run->options->clip > 0)
        params_clip_gradients(run->params, run->options->clip);
    optim_step(run->optimizer);
}

static void train_step(Run *run, int64_t step)
{
    next_batch(run, step);
    if (run->options->eager) {
        tape_reset(run->training);
        step_of(run);
    } else {
        tape_replay(run->training, step_of, run);
    }
}

/* Bits per dimension of the first count test images. */
static double evaluate(Run *run, int64_t count)
{
    double sum = 0;
    for (int64_t first = 0; first < count; first += run->batch.size) {
        int64_t size = at_most(count - first, run->batch.size);
        for (int64_t b = 0; b < size; b++)
            batch_set(&run->batch, b, &run->test, first + b);
        Shape all = shape(size, run->batch.pixels);
        Tensor *tokens = tape_input_i32(run->scoring, run->batch.tokens, all);
        Tensor *targets = tape_input_i32(run->scoring, run->batch.targets, all);
        Tensor *parameters = model_forward(run->scoring, &run->model, tokens);
        Tensor *loss = op_discretized_logistic_mixture(run->scoring, parameters, targets);
        sum += (double)size * tensor_item(loss);
        tape_reset(run->scoring);
    }
    return bits(sum / (double)count);
}

/* --------------------------------------------------------------------------------------- report */

static void print_progress(const double *values, const void *context)
{
    const Run *run = context;
    printf("training %.3f bits", values[0]);
    if (!isnan(run->test_bits))
        printf("  test %.3f bits", run->test_bits);
}

static ReportConfig report_config(const Run *run, int64_t first)
{
    const MnistOptions *options = run->options;
    return (ReportConfig){
        .log = options->log,
        .plot = options->plot,
        .resumed = options->resume != NULL,
        .quiet = options->quiet,
        .first = first,
        .last = run->steps,
        .values = 3,
        .digits = { 9, 9, 6 },
        .header = "step,training_bits,test_bits,learning_rate,seconds",
        .items = (double)options->batch,
        .unit = "images",
        .print = print_progress,
        .context = run,
        .panels = 1,
        .panel = { { .label = "bits per dimension",
                     .settings = "set yrange [0:3]\nset ytics 0.5",
                     .curves = { { .value = 0,
                                   .factor = 1,
                                   .title = "training",
                                   .line = "#2166ac",
                                   .range = "#c6dbef" },
                                 { .value = 1,
                                   .factor = 1,
                                   .title = "test",
                                   .line = "#b2541a" } } } },
    };
}

static void finish_report(Report *report, const Run *run, int64_t steps, double test_bits)
{
    const MnistOptions *options = run->options;
    ReportTitle title = { .drop_at = 0 };
    snprintf(title.title, sizeof title.title,
             "MNIST pixel by pixel: causal %s attention, %lld layers, %lld heads of %lld",
             options->attention, (long long)options->layers, (long long)options->heads,
             (long long)options->head_dim);
    snprintf(title.subtitle, sizeof title.subtitle,
             "seed %lld, step %lld: %.3f bits per dimension on the test images",
             (long long)options->seed, (long long)steps, test_bits);
    report_finish(report, &title);
}

/* Logs and shows a step; evaluates the test images if due. */
static void report(Run *run, Report *progress, int64_t step, double learning_rate, double start)
{
    const MnistOptions *options = run->options;
    bool due = options->evaluate_every && step % options->evaluate_every == 0;
    if (due)
        run->test_bits = evaluate(run, at_most(run->test.count, options->evaluate_images));
    if (!due && step % options->score_every && step != run->steps)
        return;
    double training_bits = bits(tensor_item(run->loss));
    report_step(progress,
                (Record){ .step = step,
                          .values = { training_bits, due ? run->test_bits : NAN, learning_rate },
                          .seconds = now() - start });
}

/* ------------------------------------------------------------------------------------- programs */

static void save(Run *run)
{
    FileMetadata texts[OPTIONS_MAX];
    int count = options_texts(&mnist_train_command, run->options, texts);
    if (!optim_save(run->optimizer, run->training, texts, count, run->options->save))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
}

/* The number of test images of the final evaluation; an interrupted run evaluates fewer. */
static int64_t final_images(const Run *run)
{
    const MnistOptions *options = run->options;
    int64_t few = stopped_by ? options->evaluate_images : options->test_images;
    return at_most(run->test.count, at_most(few, options->test_images));
}

/* Trains up to run->steps, including those before a resume; returns the exit status. */
static int train(Run *run)
{
    const MnistOptions *options = run->options;
    int64_t done = optim_steps(run->optimizer), first = done + 1;
    if (done > run->steps)
        fail(BAD_USE, "%lld steps: expected at least the %lld that %s has completed",
             (long long)run->steps, (long long)done, options->resume);
    Report *progress = report_new(report_config(run, first));
    catch_signals();
    double start = now();
    while (done < run->steps && !stopped_by) {
        double learning_rate = optim_learning_rate(run->optimizer);
        train_step(run, ++done);
        report(run, progress, done, learning_rate, start);
        if (options->save_every && done % options->save_every == 0)
            save(run);
    }
    device_wait(run->device);
    double seconds = now() - start, images = (double)((done - first + 1) * options->batch);
    if (options->save)
        save(run);
    int64_t count = final_images(run);
    double test_bits = evaluate(run, count);
    finish_report(progress, run, done, test_bits);
    report_free(progress);
    printf("final test_bits=%.6g test_images=%lld steps=%lld epochs=%.4g seconds=%.2f "
           "images_per_second=%.2f\n",
           test_bits, (long long)count, (long long)done,
           (double)(done * options->batch) / (double)run->images.count, seconds,
           images > 0 ? images / seconds : 0);
    return stopped_by ? 128 + stopped_by : EXIT_SUCCESS;
}

static int measure(Run *run)
{
    double start = now();
    int64_t count = final_images(run);
    double test_bits = evaluate(run, count);
    printf("evaluation test_bits=%.6g test_images=%lld steps=%lld seconds=%.2f\n", test_bits,
           (long long)count, (long long)optim_steps(run->optimizer), now() - start);
    return EXIT_SUCCESS;
}

static Tape *tape_of(Device *device, const MnistOptions *options)
{
    Tape *tape = tape_new(device);
    tape_set_precision(tape, (Precision)choice_index(precision_names, options->precision));
    tape_seed(tape, (uint64_t)options->seed);
    return tape;
}

static int64_t steps_of(const MnistOptions *options, int64_t images)
{
    return options->steps
               ? options->steps
               : (int64_t)ceil(options->epochs * (double)images / (double)options->batch);
}

static void run_load(Run *run)
{
    const char *checkpoint = run->options->resume ? run->options->resume : run->options->evaluate;
    if (checkpoint && !optim_load(run->optimizer, run->training, checkpoint))
        fail(EXIT_FAILURE, "%s", tapegrad_error());
}

static Run run_new(const MnistOptions *options)
{
    Run run = { .options = options, .test = mnist_images(options, MNIST_TEST), .test_bits = NAN };
    if (!options->evaluate)
        run.images = mnist_images(options, MNIST_TRAINING);
    run.steps = steps_of(options, run.images.count);
    run.device = mnist_device(options);
    run.params = params_new(run.device, (uint64_t)options->seed);
    run.model = model_new(run.params, options);
    AdamConfig config = optim_adam_config(options->learning_rate);
    if (!options->evaluate && !strcmp(options->schedule, "cosine"))
        config.schedule = optim_cosine(0, run.steps, 0);
    run.optimizer = optim_radam(run.params, config);
    run.training = tape_of(run.device, options);
    run.scoring = tape_of(run.device, options);
    tape_set_recording(run.scoring, false);
    tape_set_training(run.scoring, false);
    run.batch = batch_new(options->batch, run.model.pixels);
    Shape all = shape(options->batch, run.model.pixels);
    run.tokens = tape_persistent_i32(run.training, all);
    run.targets = tape_persistent_i32(run.training, all);
    run.order = order_new((uint64_t)options->seed, run.images.count);
    run_load(&run);
    return run;
}

static void run_free(Run *run)
{
    idx_free(&run->images);
    idx_free(&run->test);
    order_free(&run->order);
    batch_free(&run->batch);
    tape_free(run->training);
    tape_free(run->scoring);
    optim_free(run->optimizer);
    params_free(run->params);
}

/* Checks combinations of options. */
static void check_together(const MnistOptions *options, const Given *given)
{
    static const char *const of_training[] = { "epochs",
                                               "steps",
                                               "learning-rate",
                                               "schedule",
                                               "clip",
                                               "dropout",
                                               "log",
                                               "plot",
                                               "save",
                                               "save-every",
                                               "score-every",
                                               "evaluate-every",
                                               "evaluate-images",
                                               "eager",
                                               NULL };
    if (options->evaluate)
        options_refuse(given, of_training, "--evaluate, which trains nothing");
    if (option_given(given, "steps") && option_given(given, "epochs"))
        fail(BAD_USE, "--steps %s: expected without --epochs %s", option_given(given, "steps"),
             option_given(given, "epochs"));
    if (options->save_every && !options->save)
        fail(BAD_USE, "--save-every %lld: expected together with --save FILE",
             (long long)options->save_every);
    mnist_check_attention(options, given);
    option_check_file("log", options->log);
    option_check_file("plot", options->plot);
    option_check_file("save", options->save);
    mnist_check_data(options);
}

int mnist_train(int argc, char **argv)
{
    MnistOptions options;
    Given given = options_parse(&mnist_train_command, argc, argv, &options);
    check_together(&options, &given);
    if (option_given(&given, "epochs"))
        options.steps = 0;
    Run run = run_new(&options);
    int status = options.evaluate ? measure(&run) : train(&run);
    run_free(&run);
    return status;
}
