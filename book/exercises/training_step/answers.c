/* Answers to exercise 12.1 */
#include "exercise.h"
#include "../answer.h"

/* The backward pass of small batch i; returns what it adds to the result. */
static double pass(Model *m, int i)
{
    const bool scales =
        !is("unscaled") && !is("sum_returned") && !is("updates_each_sum") && !is("first_alone");
    Tensor *loss = tensor_keep(loss_of(m, is("repeats") ? 0 : i));
    if (is("clears"))
        params_zero_gradients(m->params);
    tape_backward(m->tape, scales ? op_scale(m->tape, loss, 1.0 / m->batches) : loss);
    if (is("reset_early"))
        tape_reset(m->tape);
    const double value = tensor_item(loss);
    if (!is("no_reset"))
        tape_reset(m->tape);
    return is("sum_returned") || is("total_loss") || is("last_loss") || is("first_alone")
               ? value
               : value / m->batches;
}

double training_step(Model *m)
{
    const bool updates_each = is("updates_each") || is("updates_each_sum");
    const int batches = is("first_alone") ? 1 : m->batches + is("too_many");
    double loss = 0;
    if (is("step_first"))
        optim_step(m->optimizer);
    if (!is("evaluates"))
        tape_set_training(m->tape, true);
    for (int i = 0; i < batches; i++) {
        const double part = pass(m, i);
        loss = is("last_loss") || is("scaled_loss") ? part : loss + part;
        if (updates_each || is("clips_each_pass"))
            params_clip_gradients(m->params, m->max_norm);
        if (updates_each)
            optim_step(m->optimizer);
    }
    if (is("clips_after"))
        optim_step(m->optimizer);
    if (is("clips_each_weight"))
        params_clip_each_gradient(m->params, m->max_norm);
    else if (!is("no_clipping") && !is("clips_each_pass") && !updates_each)
        params_clip_gradients(m->params, m->max_norm);
    if (!is("no_update") && !updates_each)
        optim_step(m->optimizer);
    if (is("twice"))
        optim_step(m->optimizer);
    return loss;
}
