#include "examples/images/data.h"
#include "examples/images/model.h"
#include "examples/shared/program.h"
#include "examples/shared/training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The state of a run. */
typedef struct Run {
    const ImagesOptions *options;
    Training training;
    Model model;
    Tensor *tokens, *targets, *loss; /* of training: [B, pixels], [B, pixels], a scalar */
    Images images, test;
    Shuffle order; /* of the training images */
    int32_t *next; /* [B]: the images of the next batch */
    Batch batch;
    char test_title[40];
} Run;

/* ---------------------------------------------------------------------------------------- steps */

static double bits(double nats)
{
    return nats / log(2);
}

/* The step determines its images, so checkpoints need not save the position in the data. */
static void next_batch(void *context, int64_t step)
{
    Run *run = context;
    const int64_t size = run->options->common.batch, first = run->training.part.first;
    random_batch(&run->order, (step - 1) * size, run->next, size);
    for (int64_t b = 0; b < run->batch.size; b++)
        batch_set(&run->batch, b, &run->images, run->next[first + b]);
    tensor_write_i32(run->tokens, run->batch.tokens);
    tensor_write_i32(run->targets, run->batch.targets);
}

static Tensor *loss_of(void *context)
{
    Run *run = context;
    Tape *tape = run->training.tape;
    Tensor *parameters = model_forward(tape, &run->model, run->tokens);
    return run->loss = op_discretized_logistic_mixture(tape, parameters, run->targets);
}

/* Bits per dimension of the first count test images, of which each rank takes a part. */
static double evaluate(Run *run, int64_t count)
{
    const DistPart part = dist_part(count);
    double sum = 0;
    for (int64_t done = 0; done < part.count; done += run->batch.size) {
        int64_t size = min_count(part.count - done, run->batch.size);
        for (int64_t b = 0; b < size; b++)
            batch_set(&run->batch, b, &run->test, part.first + done + b);
        Shape all = shape(size, run->batch.length);
        Tensor *tokens = tape_input_i32(run->training.scoring, run->batch.tokens, all);
        Tensor *targets = tape_input_i32(run->training.scoring, run->batch.targets, all);
        Tensor *parameters = model_forward(run->training.scoring, &run->model, tokens);
        Tensor *loss = op_discretized_logistic_mixture(run->training.scoring, parameters, targets);
        sum += (double)size * tensor_item(loss);
        tape_reset(run->training.scoring);
    }
    dist_sum(&sum, 1);
    return bits(sum / (double)count);
}

/* --------------------------------------------------------------------------------------- report */

static ReportConfig report_config(const Run *run)
{
    return (ReportConfig){
        .header = "step,training_bits,test_bits,learning_rate,seconds",
        .count = 3,
        .values = { { .progress = "training %.3f bits",
                      .label = "bits per dimension",
                      .settings = images_channels(run->options) > 1
                                      ? "set yrange [2:9]\nset ytics 1"
                                      : "set yrange [0:3]\nset ytics 0.5",
                      .title = "training" },
                    { .progress = "  test %.3f bits", .title = run->test_title, .sparse = true } },
        .items = (double)run->options->common.batch,
        .unit = "images",
    };
}

/* Evaluates the test images if due. */
static bool score_step(void *context, bool due, double *values)
{
    Run *run = context;
    const ImagesOptions *options = run->options;
    values[1] = NAN;
    if (options->evaluate_every && run->training.done % options->evaluate_every == 0)
        values[1] = evaluate(run, min_count(run->test.count, options->evaluate_images));
    if (!due && isnan(values[1]))
        return false;
    values[0] = bits(tensor_item(run->loss));
    training_mean(values, 1, (double)run->batch.size);
    return true;
}

/* ------------------------------------------------------------------------------------- programs */

/* The number of test images of the final evaluation; an interrupted run evaluates fewer. */
static int64_t final_images(const Run *run)
{
    const ImagesOptions *options = run->options;
    int64_t few = stopped_by ? options->evaluate_images : options->test_images;
    return min_count(run->test.count, min_count(few, options->test_images));
}

static int train(Run *run)
{
    Training *training = &run->training;
    const TrainingOptions *common = training->options;
    training_run(training, report_config(run));
    int64_t count = final_images(run), done = training->done, batch = common->batch;
    double test_bits = evaluate(run, count);
    double images = (double)((done - training->first + 1) * batch);
    printf("final test_bits=%.6g test_images=%lld steps=%lld epochs=%.4g seconds=%.2f "
           "images_per_second=%.2f\n",
           test_bits, (long long)count, (long long)done,
           (double)(done * batch) / (double)run->images.count, training->seconds,
           images > 0 ? images / training->seconds : 0);
    char title[160];
    snprintf(title, sizeof title,
             "%s pixel by pixel: causal %s attention, %lld layers, %lld heads of %lld",
             images_title(run->options), common->attention, (long long)common->layers,
             (long long)common->heads, (long long)common->head_dim);
    return training_end(training, title, "%.3f bits per dimension on the test images", test_bits);
}

static int measure(Run *run)
{
    double start = now();
    int64_t count = final_images(run);
    double test_bits = evaluate(run, count);
    printf("evaluation test_bits=%.6g test_images=%lld steps=%lld seconds=%.2f\n", test_bits,
           (long long)count, (long long)run->training.done, now() - start);
    return EXIT_SUCCESS;
}

static int64_t steps_of(const ImagesOptions *options, int64_t images)
{
    return options->common.steps
               ? options->common.steps
               : (int64_t)ceil(options->epochs * (double)images / (double)options->common.batch);
}

static Optimizer *new_optimizer(const Training *training, const ImagesOptions *options)
{
    AdamConfig config = optim_adam_config(options->common.learning_rate);
    config.weight_decay = options->weight_decay;
    if (!options->common.evaluate && !strcmp(options->schedule, "cosine"))
        config.schedule = optim_cosine(options->warm_up, training->steps, 0);
    else
        config.schedule = optim_warm_up(options->warm_up);
    return strcmp(options->optimizer, "muon") ? optim_radam(training->params, config)
                                              : training_muon(training->params, config);
}

static void run_start(Run *run, const ImagesOptions *options, const Given *given)
{
    *run = (Run){ .options = options, .test = images_read(given, options, false) };
    snprintf(run->test_title, sizeof run->test_title, "first %lld test images",
             (long long)min_count(run->test.count, options->evaluate_images));
    if (!options->common.evaluate)
        run->images = images_read(given, options, true);
    Training *training = &run->training;
    *training =
        training_new(&images_train_command, &options->common, steps_of(options, run->images.count),
                     (TrainingStep){ run, next_batch, loss_of, score_step });
    training->clip_each = !strcmp(options->clip_of, "each");
    run->model = model_new(training->params, options);
    training->optimizer = new_optimizer(training, options);
    run->batch = batch_new(training->part.count, options);
    Shape all = shape(training->part.count, run->batch.length);
    run->tokens = tape_persistent_i32(training->tape, all);
    run->targets = tape_persistent_i32(training->tape, all);
    run->next = allocate(options->common.batch, sizeof *run->next);
    run->order = (Shuffle){
        .random = random_new((uint64_t)options->common.seed, random_stream("mnist order")),
        .order = allocate(run->images.count, sizeof(int32_t)),
        .count = run->images.count,
    };
    training_load(training);
}

static void run_free(Run *run)
{
    images_free(&run->images);
    images_free(&run->test);
    free(run->order.order);
    free(run->next);
    batch_free(&run->batch);
    training_free(&run->training);
}

int images_train(int argc, char **argv)
{
    ImagesOptions options;
    Given given = options_parse(&images_train_command, argc, argv, &options);
    training_check_epochs(&options.common, &given);
    if (strcmp(options.common.attention, "linear") && strcmp(options.common.attention, "decay"))
        options_refuse(&given, "features form",
                       "--attention softmax, lsh-1 and lsh-4, which have none");
    training_check(&options.common, &given);
    images_check_data(&options);
    Run run;
    run_start(&run, &options, &given);
    int status = options.common.evaluate ? measure(&run) : train(&run);
    run_free(&run);
    return status;
}
