/* residual_layernorm, of each of R rows of C elements: layernorm(x + dropout(branch)), the end of a
 * post-norm layer's branch (Vaswani et al. 2017, section 5.4), dropout with probability p
 *   s_c = x_c + m_c branch_c     m_c = k_c / (1 - p), k_c as in ops/elementwise/dropout.c
 *   n_c = (s_c - mean) r     out_c = n_c weight_c + bias_c
 * with mean and r of s, as in ops/rows/layernorm.c
 * Backward, g = dL/dout:
 *   dweight, dbias and ds as in ops/rows/layernorm.c, with s for x
 *   dx_c <- ds_c     dbranch_c <- m_c ds_c, because ds_c / dx_c = 1 and ds_c / dbranch_c = m_c
 * Saved for the backward pass: mean and r, two values per row (`statistics`), and the generator's
 * state. s and m are not saved: the backward pass has x and branch and draws m again anyway, so
 * recomputing s costs one more read, where saving s costs one write and the memory. A device that
 * has no such kernel gets op_layernorm, op_add and op_dropout. */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

static void residual_layernorm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *branch = node->inputs[1];
    Tensor *weight = node->inputs[2], *bias = node->inputs[3];
    const Gradient dx = tape_contribution(node, x), dbranch = tape_contribution(node, branch);
    const Gradient dweight = tape_contribution(node, weight);
    const Gradient dbias = tape_contribution(node, bias);
    kernels_of(x)->residual_layernorm_backward(
        dx, dbranch, dweight, dbias, tape_upstream(node, 0),
        layernorm_arguments(x, weight ? weight : node->saved[1], NULL, node->saved[0], 0),
        (Residual){ branch->data, *(const DropoutDraw *)node->attributes });
}

Tensor *op_residual_layernorm(Tape *tape, Tensor *x, Tensor *branch, double probability,
                              Tensor *weight, Tensor *bias, double eps)
{
    tape_use(tape, "op_residual_layernorm: x", x);
    tape_use(tape, "op_residual_layernorm: branch", branch);
    Tensor *factor = weight ? weight : layernorm_constant(tape, x, 1);
    Tensor *shift = bias ? bias : layernorm_constant(tape, x, 0);
    tape_use_real(tape, "op_residual_layernorm: weight", factor);
    tape_use_real(tape, "op_residual_layernorm: bias", shift);
    if (!shape_equal(x->shape, branch->shape))
        tape_error(tape, "op_residual_layernorm: shapes differ: x %s, branch %s",
                   tensor_text(x).text, tensor_text(branch).text);
    layernorm_check(tape, "op_residual_layernorm", x, factor, shift, eps);
    const DropoutDraw d = dropout_draw(tape, "op_residual_layernorm", probability, tensor_count(x));
    op_cast_alike(tape, &x, &branch);
    if (!kernels_of(x)->residual_layernorm_forward)
        return op_layernorm(tape, op_add(tape, x, dropout_by(tape, branch, d)), weight, bias, eps);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *statistics = tape_tensor(tape, shape(shape_rows(x->shape), 2));
    kernels_of(x)->residual_layernorm_forward(
        out->data, layernorm_arguments(x, factor, shift, statistics, eps),
        (Residual){ branch->data, d });
    tape_record(tape, (Node){ "op_residual_layernorm", residual_layernorm_backward,
                              .inputs = { x, branch, weight, bias }, .outputs = { out },
                              .saved = { statistics, weight ? NULL : factor },
                              .attributes = tape_save(tape, &d, sizeof d) });
    return out;
}
