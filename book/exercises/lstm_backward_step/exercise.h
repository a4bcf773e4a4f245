/* Exercise 11.1: one time step of the backward pass of an LSTM. */
#include <tapegrad.h>

/* What the step's forward pass saved, and the gradients that later steps and the output contribute,
 * H elements each. */
typedef struct Step {
    const Real *i, *f, *candidate, *o; /* the gates, after their functions; candidate is c~ */
    const Real *c, *c_before;          /* c_t, c_{t-1} */
    const Real *dh;                    /* dL/dh_t, complete */
    const Real *dc_after;              /* dc_{t+1} f_{t+1}: what c_{t+1} contributes to dc_t */
} Step;

void lstm_backward_step(Real *da, Real *dc_before, Step s, int H);
