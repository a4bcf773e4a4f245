/* What the programs of this directory do with their extension: check its gradients, train a small
 * task, save a checkpoint in the middle, continue from it with other Params, and compare all
 * weights bit by bit. */
#include <stdio.h>
#include <string.h>
#include <tapegrad.h>

/* Whether the gradient by one input, of normal random numbers, equals finite differences. */
static inline bool checks(const char *device, CheckedFunction *function, void *context, Shape shape)
{
    Real x[64];
    Random random = random_new(/*seed*/ 1, random_stream("check"));
    random_normal(&random, x, shape_count(shape));
    const CheckInput input = { shape, x };
    const GradientCheck result = gradient_check(device_open(device), function, context, &input, 1);
    printf("gradient check on %s: error %.1e\n", device, result.error);
    return result.error <= 2e-3;
}

enum { STEPS = 400 };

typedef struct Task {
    const char *file;                                 /* of the checkpoint, which is removed */
    Optimizer *(*build)(Params *params, void *model); /* adds the weights, sets the layers */
    Tensor *(*loss)(Tape *tape, const void *model, int step);
    void *model;
    double max_loss; /* of the last step */
} Task;

/* The weights after all steps, from the first one or from the checkpoint on. */
static Params *train(const Task *task, bool resumes, double *loss)
{
    Device *device = device_open("cpu");
    Params *params = params_new(device, /*seed*/ resumes ? 2 : 1); /* the file replaces seed 2's */
    Optimizer *optimizer = task->build(params, task->model);
    Tape *tape = tape_new(device);
    bool ok = !resumes || optim_load(optimizer, tape, task->file);
    for (int step = (int)optim_steps(optimizer) + 1; ok && step <= STEPS; step++) {
        Tensor *out = task->loss(tape, task->model, step);
        tape_backward(tape, out);
        optim_step(optimizer);
        *loss = tensor_item(out);
        if (!resumes && step % (STEPS / 4) == 0)
            printf("step %3d  loss %.4f\n", step, *loss);
        if (!resumes && step == STEPS / 2)
            ok = optim_save(optimizer, tape, NULL, 0, task->file);
        tape_reset(tape);
    }
    if (!ok)
        printf("%s: %s\n", task->file, tapegrad_error());
    tape_free(tape);
    optim_free(optimizer);
    return params;
}

/* Whether the loss falls below the bound, and a resumed run ends with the same weights. */
static bool trains_and_resumes(Task task)
{
    double loss = INFINITY, resumed_loss = INFINITY;
    Params *params = train(&task, false, &loss), *resumed = train(&task, true, &resumed_loss);
    const Tensor *a = params_flat_values(params), *b = params_flat_values(resumed);
    const bool equal = !memcmp(a->data, b->data, (size_t)tensor_count(a) * sizeof(Real));
    printf("resumed from step %d: %s\n", STEPS / 2, equal ? "bitwise equal" : "different weights");
    params_free(params);
    params_free(resumed);
    return !remove(task.file) && equal && loss < task.max_loss && !fflush(stdout) &&
           !ferror(stdout);
}
