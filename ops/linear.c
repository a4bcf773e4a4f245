/* linear: out = x weight^T + bias, of rows x [R, I], weight [O, I], bias [O]
 *   out_ro = sum_i x_ri weight_oi + bias_o
 * Backward, g = dL/dout:
 *   dx_ri <- sum_o g_ro weight_oi     dweight_oi <- sum_r g_ro x_ri     dbias_o <- sum_r g_ro
 * so dx = g weight, dweight = g^T x, and dbias is g's sum over the rows. */
#include "ops/columns.h"
#include "ops/product.h"
#include "ops/internal.h"

/* out [R, O] += bias [O] in every row: oneDNN's products that add one themselves are no faster. */
static void linear_add_bias_cpu(Real *out, const Real *bias, int64_t R, int64_t O)
{
#pragma omp parallel for schedule(static) if (R * O >= PARALLEL_MINIMUM)
    for (int64_t r = 0; r < R; r++)
        for (int64_t o = 0; o < O; o++)
            out[r * O + o] += bias[o];
}

static void linear_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const Real *dout = tape_upstream(node, 0);
    int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];

    Gradient dx = tape_contribution(node, x); /* [R, I] = dout [R, O] weight [O, I] */
    if (dx.data)
        product(node->tape, "op_linear", dx.data, dx.accumulate, dout, weight->data,
                (Product){ .n = R, .k = O, .m = I, .count = 1 });

    Gradient dweight = tape_contribution(node, weight); /* [O, I] = dout^T [O, R] x [R, I] */
    if (dweight.data)
        product(node->tape, "op_linear", dweight.data, dweight.accumulate, dout, x->data,
                (Product){ .n = O, .k = R, .m = I, .transpose_a = true, .count = 1 });

    Gradient dbias = tape_contribution(node, bias); /* [O] */
    if (dbias.data)
        column_sums(node->tape, node->outputs[0], dbias, dout, R, O);
}

static void check_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    tape_use(tape, "op_linear: x", x);
    tape_use(tape, "op_linear: weight", weight);
    if (weight->shape.rank != 2)
        tape_error(tape, "op_linear: weight is %s, expected two axes, [out, in]",
                   shape_text(weight->shape).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != weight->shape.size[1])
        tape_error(tape, "op_linear: x is %s, expected %lld in its last axis: weight is %s",
                   shape_text(x->shape).text, (long long)weight->shape.size[1],
                   shape_text(weight->shape).text);
    if (!bias)
        return;
    tape_use(tape, "op_linear: bias", bias);
    if (!shape_equal(bias->shape, shape(weight->shape.size[0])))
        tape_error(tape, "op_linear: bias is %s, expected %s: weight is %s",
                   shape_text(bias->shape).text, shape_text(shape(weight->shape.size[0])).text,
                   shape_text(weight->shape).text);
}

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    check_linear(tape, x, weight, bias);
    int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = O;
    Tensor *out = tape_tensor(tape, out_shape);
    product(tape, "op_linear", out->data, false, x->data, weight->data,
            (Product){ .n = R, .k = I, .m = O, .transpose_b = true, .count = 1 });
    if (bias)
        DEVICE_CALL(out, linear_add_bias, (out->data, bias->data, R, O));
    tape_record(tape, (Node){ .name = "op_linear",
                              .backward = linear_backward,
                              .inputs = { x, weight, bias },
                              .outputs = { out } });
    return out;
}
