/* dropout with probability p (Srivastava et al. 2014)
 *   out_i = k_i x_i / (1 - p)     k_i = 1 if u_i >= p, else 0     u_i uniform in [0, 1)
 * Backward, g = dL/dout:
 *   dx_i <- k_i g_i / (1 - p)
 * Saved for the backward pass: only the generator's state. u_i comes from word i % 4 of the Philox
 * block at counter start + i / 4, so the backward pass draws the same numbers, on any thread. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

Real dropout_element(const DropoutDraw *d, int64_t i, Real x)
{
    if (d->limit == 0)
        return x;
    const Random random = d->random;
    const Philox drawn = philox(random.seed, random.stream, random.counter + (uint64_t)i / 4);
    return drawn.word[i % 4] >> 8 >= d->limit ? d->scale * x : 0;
}

void dropout_plain(Gradient out, const Real *x, DropoutDraw d, int64_t n)
{
    EACH(i, n) {
        gradient_add(out, i, dropout_element(&d, i, x[i]));
    }
}

static void dropout_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    kernels_of(x)->dropout(tape_contribution(node, x), tape_upstream(node, 0),
                           *(const DropoutDraw *)node->attributes, tensor_count(x));
}

DropoutDraw dropout_draw(Tape *tape, const char *operation, Real probability, int64_t count)
{
    if (!(probability >= 0 && probability < 1))
        tape_error(tape, "%s: probability is %g, expected 0 or more and less than 1", operation,
                   (double)probability);
    if (probability == 0 || !tape_is_training(tape))
        return (DropoutDraw){ .scale = 1 };
    return (DropoutDraw){ .random = tape_draw(tape, (count + 3) / 4),
                          .start = tape_random_start(tape),
                          .limit = (uint32_t)ceil(0x1p24 * (double)probability),
                          .scale = 1 / (1 - probability) };
}

Tensor *op_dropout(Tape *tape, Tensor *x, double probability)
{
    tape_use(tape, "op_dropout: x", x);
    const DropoutDraw d = dropout_draw(tape, "op_dropout", (Real)probability, tensor_count(x));
    if (d.limit == 0)
        return x;
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    kernels_of(x)->dropout((Gradient){ out->data, false }, x->data, d, tensor_count(x));
    tape_record(tape, (Node){ "op_dropout", dropout_backward, .inputs = { x }, .outputs = { out },
                              .attributes = tape_save(tape, &d, sizeof d) });
    return out;
}
