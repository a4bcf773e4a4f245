/* Exercise 11.1. A step of an LSTM was, for each of its H units,
 *     c_t = f c_{t-1} + i c~        h_t = o tanh(c_t)
 * From the gates, c_t, c_{t-1} and the gradients in s, store da, the gradients before the gates'
 * functions: da[j] of i, da[H + j] of f, da[2 * H + j] of c~, da[3 * H + j] of o. Store in
 * dc_before[j] what this step contributes to the gradient of c_{t-1}. exercise.h describes s. Then,
 * in the folder exercises,
 *     cc -DTAPEGRAD_DOUBLE -DTAPEGRAD_PLAIN -I. lstm_backward_step/[se]*.c grade.c tapegrad.c -lm
 *     ./a.out */
#include "exercise.h"

#include <math.h>

void lstm_backward_step(Real *da, Real *dc_before, Step s, int H)
{
    for (int j = 0; j < H; j++) {
        /* your lines */
    }
}
