/* Exercise 12.1. One step on a large batch, which does not fit into memory at once: record and
 * differentiate its small batches one after the other, so that the gradients become those of the
 * mean of their losses. Clip the gradients to max_norm, update the weights, and return that mean
 * loss. Before the call the program has evaluated, with tape_set_training off. Then, in the folder
 * exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. training_step/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

double training_step(Model *model)
{
    /* your lines: tape_set_training, loss_of, op_scale, tape_backward, tensor_item, tape_reset,
     * params_clip_gradients, optim_step */
    return 0;
}
