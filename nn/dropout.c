/* Inverted dropout (Srivastava et al. 2014): scaled by 1 / (1 - probability) during training. */
#include "nn/internal.h"

Dropout nn_dropout(double probability)
{
    if (!(probability >= 0 && probability < 1))
        error_raise("nn_dropout: the probability is %g, expected 0 <= probability < 1",
                    probability);
    return (Dropout){ probability };
}

Tensor *nn_dropout_forward(Tape *tape, const Dropout *dropout, Tensor *x)
{
    error_need("nn_dropout_forward", "the layer", dropout);
    return op_dropout(tape, x, dropout->probability);
}
