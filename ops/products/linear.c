/* linear: out = f(y), y = x weight^T + bias, x [R, I], weight [O, I], bias [O]; f is the activation
 * or the identity
 *   y_ro = sum_i x_ri weight_oi + bias_o
 * Backward, g = dL/dout, h = dL/dy:
 *   h_ro = g_ro f'(y_ro)
 *   dx_ri <- sum_o h_ro weight_oi     dweight_oi <- sum_r h_ro x_ri     dbias_o <- sum_r h_ro
 * so dx = h weight, dweight = h^T x, and dbias is h's sum over the rows.
 * Saved for the backward pass: y; nothing for the identity, nor for relu: out > 0 where y > 0. In
 * bf16 also the weight's copy, if it was made here (operand_of_parameter). */
#include "ops/kernels.h"
#include "ops/shared/internal.h"

ALWAYS_INLINE void activate_row(Activation f, Real *out, Real *y, const Real *bias, int64_t O)
{
    PRAGMA(omp simd)
    for (int64_t o = 0; o < O; o++)
        out[o] = activation_of(f, y[o] += bias[o]);
}

/* y, or out if y is NULL, holds the product. */
void linear_activate_plain(Real *out, Real *y, const Real *bias, Activation f, int64_t R, int64_t O)
{
    EACH_ROW(r, R, O)
        BY_ACTIVATION(f, activate_row, out + r * O, (y ? y : out) + r * O, bias, O);
}

void linear_forward_plain(const LinearPass *p)
{
    product_plain(p->precision, (Result){ p->y ? p->y : p->out, p->type, false },
                  (Operand){ p->x, p->type }, (Operand){ p->weight, p->type }, linear_product(p));
    if (p->bias) /* an activation comes with one */
        linear_activate_plain(p->out, p->y, p->bias, p->activation, p->R, p->O);
}

void linear_activate_backward_plain(Real *h, Gradient dbias, const Real *g, const Real *y,
                                    Activation f, int64_t R, int64_t O)
{
    EACH(i, R * O)
        h[i] = activation_gradient(f, g[i], y[i]);
    if (dbias.data)
        column_sums_plain(dbias, h, R, O);
}

enum { SAVED_Y, SAVED_WEIGHT };

static void linear_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    Tensor *out = node->outputs[0], *y = node->saved[SAVED_Y] ? node->saved[SAVED_Y] : out;
    const Activation f = *(const Activation *)node->attributes;
    const int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];
    const Gradient dbias = tape_contribution(node, bias);
    Operand h = upstream_operand(node);
    if (f != ACTIVATION_NONE) {
        const Tensor *own = scratch_of_node(node, out);
        kernels_of(out)->linear_activate_backward(own->data, dbias, h.data, y->data, f, R, O);
        h = operand_of(own);
    } else if (dbias.data) {
        kernels_of(out)->column_sums(dbias, h.data, R, O);
    }
    const Operand w = operand_of_parameter(node, weight, &node->saved[SAVED_WEIGHT]);
    /* dx [R, I] <- h [R, O] weight [O, I]      dweight [O, I] <- h^T [O, R] x [R, I] */
    op_contribute_product(node, x, h, w, (Product){ .n = R, .k = O, .m = I, .count = 1 });
    op_contribute_product(node, weight, h, operand_of(x),
                          (Product){ .n = O, .k = R, .m = I, .transpose_a = true, .count = 1 });
}

typedef struct LinearLabels {
    const char *operation, *x, *weight, *bias;
} LinearLabels;

static void check_linear_inputs(Tape *tape, LinearLabels labels, Tensor *x, Tensor *weight,
                                Tensor *bias)
{
    tape_use(tape, labels.x, x);
    tape_use_real(tape, labels.weight, weight);
    if (weight->shape.rank != 2)
        tape_error(tape, "%s %s, expected two axes, [out, in]", labels.weight,
                   tensor_text(weight).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != weight->shape.size[1])
        tape_error(tape, "%s %s, expected %lld in its last axis: weight %s", labels.x,
                   tensor_text(x).text, (long long)weight->shape.size[1], tensor_text(weight).text);
    if (!bias)
        return;
    tape_use_real(tape, labels.bias, bias);
    if (!shape_equal(bias->shape, shape(weight->shape.size[0])))
        tape_error(tape, "%s %s, expected %s: weight %s", labels.bias, tensor_text(bias).text,
                   shape_text(shape(weight->shape.size[0])).text, tensor_text(weight).text);
}

static Tensor *linear(Tape *tape, LinearLabels labels, Tensor *x, Tensor *weight, Tensor *bias,
                      Activation f)
{
    check_linear_inputs(tape, labels, x, weight, bias);
    const TensorType type = product_type(tape);
    x = op_cast(tape, x, type);
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = weight->shape.size[0];
    Tensor *out = tape_tensor_of(tape, type, out_shape), *bias_copy = NULL;
    Node node = { labels.operation,
                  linear_backward,
                  .inputs = { x, weight, bias },
                  .outputs = { out },
                  .attributes = tape_save(tape, &f, sizeof f),
                  .tape = tape };
    if (tape_is_recording(tape) && f != ACTIVATION_NONE && f != ACTIVATION_RELU)
        node.saved[SAVED_Y] = tape_tensor_of(tape, type, out_shape);
    const Operand w = operand_of_parameter(&node, weight, &node.saved[SAVED_WEIGHT]);
    const Operand b = operand_of_parameter(&node, bias, &bias_copy);
    op_kernels_on(out->device, TENSOR_REAL)
        ->linear_forward(&(LinearPass){ .out = out->data,
                                        .y = node.saved[SAVED_Y] ? node.saved[SAVED_Y]->data : NULL,
                                        .x = x->data,
                                        .weight = w.data,
                                        .bias = bias ? bias->data : NULL,
                                        .bias_copy = b.data,
                                        .R = shape_rows(x->shape),
                                        .I = weight->shape.size[1],
                                        .O = weight->shape.size[0],
                                        .activation = f,
                                        .precision = tape_precision(tape),
                                        .type = type });
    tape_record(tape, node);
    return out;
}

#define LINEAR_LABELS(name) ((LinearLabels){ name, name ": x", name ": weight", name ": bias" })

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    return linear(tape, LINEAR_LABELS("op_linear"), x, weight, bias, ACTIVATION_NONE);
}

Tensor *op_linear_activation(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                             Activation activation)
{
    if ((unsigned)activation > ACTIVATION_NONE)
        tape_error(tape, "op_linear_activation: there is no activation %d", (int)activation);
    tape_use(tape, "op_linear_activation: bias", bias); /* raises if NULL */
    return linear(tape, LINEAR_LABELS("op_linear_activation"), x, weight, bias, activation);
}
