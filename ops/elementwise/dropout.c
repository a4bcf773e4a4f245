/* dropout with probability p (Srivastava et al. 2014)
 *   out_i = k_i x_i / (1 - p)     k_i = 1 if u_i >= p, else 0     u_i uniform in [0, 1)
 * Backward, g = dL/dout:
 *   dx_i <- k_i g_i / (1 - p)
 * Saved for the backward pass: the generator's state, no mask. u_i comes from word i % 4 of the
 * Philox block i / 4 after it, so the same kernel, given g for x, draws the same numbers again, on
 * any thread. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

/* An element that is dropped becomes 0 even if it is NaN. */
void dropout_plain(Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
    EACH(i, n) {
        const uint64_t counter = d.random.counter + (uint64_t)i / 4;
        const Philox drawn = philox(d.random.seed, d.random.stream, counter);
        gradient_add(out, i, drawn.word[i % 4] >> 8 >= d.limit ? d.scale * x[i] : 0);
    }
}

static void dropout_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    kernels_of(x)->dropout(tape_contribution(node, x), tape_upstream(node, 0),
                           *(const DropoutDraw *)node->attributes, tensor_count(x));
}

DropoutDraw dropout_draw(Tape *tape, const char *operation, double probability, int64_t count)
{
    if (!(probability >= 0 && probability < 1))
        tape_error(tape, "%s: probability is %g, expected 0 or more and less than 1", operation,
                   probability);
    if (probability == 0 || !tape_is_training(tape))
        return (DropoutDraw){ .scale = 1 };
    return (DropoutDraw){ .random = tape_draw(tape, (count + 3) / 4),
                          .start = tape_random_start(tape),
                          .limit = (uint32_t)ceil(0x1p24 * probability),
                          .scale = (Real)(1 / (1 - probability)) };
}

Tensor *dropout_by(Tape *tape, Tensor *x, DropoutDraw d)
{
    if (d.limit == 0)
        return x;
    tape_use(tape, "op_dropout: x", x); /* of op_residual_layernorm, too */
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->dropout((Gradient){ out->data, false }, x->data, d, tensor_count(x));
    tape_record(tape, (Node){ "op_dropout", dropout_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &d, sizeof d) });
    return out;
}

Tensor *op_dropout(Tape *tape, Tensor *x, double probability)
{
    tape_use(tape, "op_dropout: x", x);
    return dropout_by(tape, x, dropout_draw(tape, "op_dropout", probability, tensor_count(x)));
}
