/* Exercise 12.1: the right weights are those of a network after three steps of the library; the
 * usual mistakes are variants of the step. A refusal by the library becomes a sentence. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <setjmp.h>
#include <string.h>

enum { X, Y, STEPS = 3, MAX_BATCHES = 3, ROWS = 4, IN = 3, HIDDEN = 4, OUT = 2 };
enum { WEIGHTS, LOSSES }; /* results */

typedef double Step(Model *model);

static Linear hidden, output;
static const Real *inputs, *targets; /* of the case; a step of each case reads the same ones */

Tensor *loss_of(Model *model, int i)
{
    Tape *tape = model->tape;
    if (i < 0 || i >= model->batches)
        tape_error(tape, "loss_of: there is no small batch %d, expected 0 to %d", i,
                   model->batches - 1);
    Tensor *x = tape_input(tape, inputs + i * ROWS * IN, shape(ROWS, IN));
    x = op_tanh(tape, nn_linear_forward(tape, &hidden, x));
    const Dropout dropout = nn_dropout(0.3);
    x = nn_linear_forward(tape, &output, nn_dropout_forward(tape, &dropout, x));
    return op_mean_squared_error(tape, x,
                                 tape_input(tape, targets + i * ROWS * OUT, shape(ROWS, OUT)));
}

/* ------------------------------------------------------------------------------ running a step */
static jmp_buf after_error;

static void catch_error(const char *sentence, void *context)
{
    (void)context;
    say("the library refuses it: %s", sentence);
    longjmp(after_error, 1);
}

/* The results of three steps */
static void run(const Case *c, Step *step, Real *weights, Real *losses)
{
    Device *device = device_open("plain");
    Model model = { .params = params_new(device, /*seed*/ 1),
                    .tape = tape_new(device),
                    .max_norm = c->size[1] / 1000.0,
                    .batches = c->size[0] };
    hidden = nn_linear(model.params, "hidden", IN, HIDDEN);
    output = nn_linear(model.params, "output", HIDDEN, OUT);
    model.optimizer = optim_sgd(model.params, optim_sgd_config(0.5));
    inputs = c->in[X];
    targets = c->in[Y];
    tapegrad_on_error(catch_error, NULL);
    if (!setjmp(after_error))
        for (int t = 0; t < STEPS; t++) {
            tape_set_training(model.tape, false);
            losses[t] = step(&model);
        }
    tapegrad_on_error(NULL, NULL);
    Real *values = params_flat_values(model.params)->data;
    for (int k = 0, n = 0; k < params_count(model.params); k++) {
        const Tensor *weight = params_at(model.params, k);
        for (int64_t i = 0; i < tensor_count(weight); i++)
            weights[n++] = values[weight->data - values + i];
    }
    tape_free(model.tape);
    optim_free(model.optimizer);
    params_free(model.params);
}

enum { COUNT = HIDDEN * IN + HIDDEN + OUT * HIDDEN + OUT };

static void student(const Case *c, const Gradient *out)
{
    run(c, training_step, out[WEIGHTS].data, out[LOSSES].data);
}

/* --------------------------------------------------------- the right step, and wrong ones */
typedef enum {
    RIGHT,
    EMPTY,
    NO_UPDATE,
    EVALUATES,
    SUM,
    SUM_RETURNED,
    UPDATES_EACH,
    UPDATES_EACH_SUM,
    CLIPS_EACH_PASS,
    CLIPS_EACH_WEIGHT,
    NO_CLIPPING,
    CLEARS,
    FIRST_ALONE,
    REPEATS,
    LAST_LOSS,
    TOTAL_LOSS,
    SCALED_LOSS,
} Fault;
static Fault fault;

static double faulty_step(Model *m)
{
    const bool scales = fault != SUM && fault != SUM_RETURNED && fault != UPDATES_EACH_SUM;
    const bool updates_each = fault == UPDATES_EACH || fault == UPDATES_EACH_SUM;
    const int batches = fault == FIRST_ALONE ? 1 : m->batches;
    double total = 0, last = 0;
    if (fault == EMPTY)
        return 0;
    tape_set_training(m->tape, fault != EVALUATES);
    for (int i = 0; i < batches; i++) {
        Tensor *loss = loss_of(m, fault == REPEATS ? 0 : i);
        if (fault == CLEARS)
            params_zero_gradients(m->params);
        tape_backward(m->tape, scales ? op_scale(m->tape, tensor_keep(loss), 1.0 / batches) : loss);
        last = tensor_item(loss);
        total += last;
        tape_reset(m->tape);
        if (fault == CLIPS_EACH_PASS || updates_each)
            params_clip_gradients(m->params, m->max_norm);
        if (updates_each)
            optim_step(m->optimizer);
    }
    if (fault == CLIPS_EACH_WEIGHT)
        params_clip_each_gradient(m->params, m->max_norm);
    else if (fault != NO_CLIPPING && fault != CLIPS_EACH_PASS && !updates_each)
        params_clip_gradients(m->params, m->max_norm);
    if (fault != NO_UPDATE && !updates_each)
        optim_step(m->optimizer);
    return fault == LAST_LOSS                             ? last
           : fault == TOTAL_LOSS || fault == SUM_RETURNED ? total
           : fault == SCALED_LOSS                         ? last / batches
                                                          : total / batches;
}

/* The norm of the gradients exceeds max_norm in the second case, not in the first. */
static void make(Case *c, int index)
{
    static const int batches[CASES] = { 3, 2, 3 }, thousandths[CASES] = { 100000, 200, 500 };
    Real weights[COUNT], losses[STEPS];
    c->size[0] = batches[index];
    c->size[1] = thousandths[index];
    case_normal(c, index, X, MAX_BATCHES * ROWS * IN);
    case_normal(c, index, Y, MAX_BATCHES * ROWS * OUT);
    fault = RIGHT;
    run(c, faulty_step, weights, losses);
    case_right(c, WEIGHTS, weights, 1, COUNT);
    case_right(c, LOSSES, losses, 1, STEPS);
}

static void faulty(const Case *c, const Gradient *out)
{
    fault = (Fault)c->fault;
    run(c, faulty_step, out[WEIGHTS].data, out[LOSSES].data);
}

int main(void)
{
    return grade(&(Exercise){
        .name = "training_step",
        .outputs = { "weights", "losses" },
        .fills = true,
        .make = make,
        .student = student,
        .faulty = faulty,
        .faults = {
            [EMPTY] = "no weight has changed, and the loss is 0: the body is still empty",
            [NO_UPDATE] = "no weight has changed: optim_step moves them",
            [EVALUATES] = "dropout is off, as the evaluation before left it: switch it on by "
                          "tape_set_training",
            [SUM] = "the gradients are those of the sum of the losses, expected of their mean: "
                    "scale each loss by 1 / batches before its backward pass",
            [SUM_RETURNED] = "the gradients and the result are those of the sum of the losses, "
                             "expected of their mean: scale each loss by 1 / batches",
            [UPDATES_EACH] = "optim_step runs after each small batch: the next one then meets "
                             "other weights. Let the gradients add up, and update once",
            [UPDATES_EACH_SUM] = "optim_step runs after each small batch: the next one then meets "
                                 "other weights. Let the gradients add up, and update once",
            [CLIPS_EACH_PASS] = "the gradients are clipped after each pass: only the complete sum "
                                "has the norm that counts, so clip after the loop",
            [CLIPS_EACH_WEIGHT] = "each weight's gradient is clipped by itself, which turns the "
                                  "direction: params_clip_gradients takes the norm of all",
            [NO_CLIPPING] = "the gradients are not clipped: params_clip_gradients belongs before "
                            "optim_step",
            [CLEARS] = "the gradients are cleared before each pass, and only the last batch "
                       "counts: optim_step clears them, once per step",
            [FIRST_ALONE] = "only small batch 0 is used: visit all batches",
            [REPEATS] = "each pass takes small batch 0: pass i to loss_of",
            [LAST_LOSS] = "the weights are right, and the result is the loss of the last small "
                          "batch: return the mean of all",
            [TOTAL_LOSS] = "the weights are right, and the result is the sum of the losses: "
                           "return their mean",
            [SCALED_LOSS] = "the weights are right, and the result is the last scaled loss: add "
                            "up all of them",
        },
    });
}
