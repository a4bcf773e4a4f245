/* Answers to exercise 12.1, compiled with -Dright, -Dunscaled, ...; expected.txt has the grader's
 * sentences. */
#include "exercise.h"

#if defined unscaled || defined sum_returned || defined updates_each_sum
#define SCALE 1.0
#else
#define SCALE (1.0 / m->batches)
#endif

double training_step(Model *m)
{
    double loss = 0;
#ifdef step_first
    optim_step(m->optimizer);
#endif
#ifndef evaluates
    tape_set_training(m->tape, true);
#endif
#ifdef first_alone
    for (int i = 0; i < 1; i++) {
        Tensor *scaled = loss_of(m, i);
#elif defined too_many
    for (int i = 0; i <= m->batches; i++) {
        Tensor *scaled = op_scale(m->tape, loss_of(m, i), SCALE);
#elif defined repeats
    for (int i = 0; i < m->batches; i++) {
        Tensor *scaled = op_scale(m->tape, loss_of(m, 0), SCALE);
#else
    for (int i = 0; i < m->batches; i++) {
        Tensor *scaled = op_scale(m->tape, loss_of(m, i), SCALE);
#endif
#ifdef clears
        params_zero_gradients(m->params);
#endif
        tape_backward(m->tape, scaled);
#ifdef reset_early
        tape_reset(m->tape);
#endif
#if defined last_loss || defined scaled_loss
        loss = 0;
#endif
#if defined total_loss || defined last_loss
        loss += tensor_item(scaled) * m->batches;
#elif defined unscaled || defined updates_each_sum
        loss += tensor_item(scaled) / m->batches;
#else
        loss += tensor_item(scaled);
#endif
#ifndef no_reset
        tape_reset(m->tape);
#endif
#if defined clips_each_pass || defined updates_each || defined updates_each_sum
        params_clip_gradients(m->params, m->max_norm);
#endif
#if defined updates_each || defined updates_each_sum
        optim_step(m->optimizer);
#endif
    }
#ifdef clips_after
    optim_step(m->optimizer);
#endif
#ifdef clips_each_weight
    params_clip_each_gradient(m->params, m->max_norm);
#elif !defined no_clipping && !defined clips_each_pass && !defined updates_each &&                 \
    !defined updates_each_sum
    params_clip_gradients(m->params, m->max_norm);
#endif
#if !defined no_update && !defined updates_each && !defined updates_each_sum
    optim_step(m->optimizer);
#endif
#ifdef twice
    optim_step(m->optimizer);
#endif
    return loss;
}
