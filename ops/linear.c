/* linear: out = f(y), y = x weight^T + bias, of rows x [R, I], weight [O, I], bias [O]; f is the
 * activation, or f(y) = y
 *   y_ro = sum_i x_ri weight_oi + bias_o
 * Backward, g = dL/dout, h = dL/dy:
 *   h_ro = g_ro f'(y_ro)
 *   dx_ri <- sum_o h_ro weight_oi     dweight_oi <- sum_r h_ro x_ri     dbias_o <- sum_r h_ro
 * so dx = h weight, dweight = h^T x, and dbias is h's sum over the rows.
 * After the product one pass adds the bias and takes f, unless the product does it all; in backward
 * one pass makes h and its sums.
 * Kept: y for gelu, which needs it; for relu, out tells where y is above 0. */
#include "ops/linear.h"
#include "ops/activation.h"
#include "ops/columns.h"
#include "ops/internal.h"
#include "ops/product.h"

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* ---------------------------------------------------------------------------------- the activation
 * It is a constant where the loops are compiled: each activation has loops of its own. */
#define BY_ACTIVATION(activation, function, ...)                                                   \
    switch (activation) {                                                                          \
    case ACTIVATION_NONE:                                                                          \
        function(ACTIVATION_NONE, __VA_ARGS__);                                                    \
        break;                                                                                     \
    case ACTIVATION_RELU:                                                                          \
        function(ACTIVATION_RELU, __VA_ARGS__);                                                    \
        break;                                                                                     \
    case ACTIVATION_GELU:                                                                          \
        function(ACTIVATION_GELU, __VA_ARGS__);                                                    \
        break;                                                                                     \
    case ACTIVATION_GELU_TANH:                                                                     \
        function(ACTIVATION_GELU_TANH, __VA_ARGS__);                                               \
        break;                                                                                     \
    }

/* A row: y or, where that is NULL, out holds the product. */
ALWAYS_INLINE void activate_row(Activation activation, Real *out, Real *y, const Real *bias,
                                int64_t O)
{
    if (y) {
#pragma omp simd
        for (int64_t o = 0; o < O; o++) {
            y[o] += bias[o];
            out[o] = activation_of(activation, y[o]);
        }
    } else {
#pragma omp simd
        for (int64_t o = 0; o < O; o++)
            out[o] = activation_of(activation, out[o] + bias[o]);
    }
}

/* y [R, O] (NULL: out) += bias [O] in every row, out [R, O] = f(y). oneDNN's products that add a bias
 * themselves are no faster. */
static void linear_activate_cpu(Real *out, Real *y, const Real *bias, Activation activation,
                                int64_t R, int64_t O)
{
#pragma omp parallel for schedule(static) if (R * O >= PARALLEL_MINIMUM)
    for (int64_t r = 0; r < R; r++)
        BY_ACTIVATION(activation, activate_row, out + r * O, y ? y + r * O : NULL, bias, O)
}

ALWAYS_INLINE void activate_row_backward(Activation activation, Real *h, Real *sum, const Real *g,
                                         const Real *y, int64_t O)
{
#pragma omp simd
    for (int64_t o = 0; o < O; o++) {
        contribute(&h[o], false, activation_gradient(activation, g[o], y[o]));
        sum[o] += h[o];
    }
}

/* h [R, O] = g [R, O] f'(y [R, O]), and of each block of rows the sums, partial [row_blocks(R), O];
 * of relu y may be out. */
static void linear_activate_backward_cpu(Real *h, Real *partial, const Real *g, const Real *y,
                                         Activation activation, int64_t R, int64_t O)
{
#pragma omp parallel for schedule(static) if (R * O >= PARALLEL_MINIMUM)
    for (int64_t i = 0; i < row_blocks(R); i++) {
        Real *sum = partial + i * O;
        memset(sum, 0, (size_t)O * sizeof *sum);
        for (int64_t r = row_block_start(i, R); r < row_block_start(i + 1, R); r++)
            BY_ACTIVATION(activation, activate_row_backward, h + r * O, sum, g + r * O, y + r * O,
                          O)
    }
}

/* ------------------------------------------------------------------------------------------- bf16
 * Activations are bf16 there and parameters are not, but a product's operands are alike: it gets
 * copies of the weight and, for its epilogue, of the bias. Backward uses the weight's again. */

/* to [n] = weight, to + bias_at [m] = bias, in bf16; to is in bf16 too. The CPU knows none. */
static void linear_copy_cpu(Real *to, const Real *weight, int64_t n, int64_t bias_at,
                            const Real *bias, int64_t m)
{
    (void)to, (void)weight, (void)n, (void)bias_at, (void)bias, (void)m;
}

static Tensor *copy_parameters(Tape *tape, const Tensor *weight, const Tensor *bias)
{
    enum { UNIT = 128 }; /* the bias begins where vector loads may */
    const int64_t n = tensor_count(weight), m = bias ? tensor_count(bias) : 0;
    const int64_t bias_at = (n + UNIT - 1) / UNIT * UNIT;
    Tensor *copy = tape_tensor_of(tape, TENSOR_BF16, shape(bias_at + m));
    DEVICE_CALL(copy, linear_copy,
                (copy->data, weight->data, n, bias_at, bias ? bias->data : NULL, m));
    return copy;
}

/* ---------------------------------------------------------------------------------------- backward */
enum { KEPT_Y, KEPT_COPY };

/* The contributions of h = dL/dy to x and the weight. */
static void contribute_products(Node *node, Operand h)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *copy = node->kept[KEPT_COPY];
    int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];

    Gradient dx = tape_contribution(node, x); /* [R, I] = h [R, O] weight [O, I] */
    if (dx.data)
        product(node->tape, node->name, result_for(dx, x), h, operand_of(copy ? copy : weight),
                (Product){ .n = R, .k = O, .m = I, .count = 1 });

    Gradient dweight = tape_contribution(node, weight); /* [O, I] = h^T [O, R] x [R, I] */
    if (dweight.data)
        product(node->tape, node->name, result_for(dweight, weight), h, operand_of(x),
                (Product){ .n = O, .k = R, .m = I, .transpose_a = true, .count = 1 });
}

static void linear_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const Operand h = upstream_operand(node); /* the same as g */
    contribute_products(node, h);
    Gradient dbias = tape_contribution(node, bias); /* [O] */
    if (dbias.data)
        column_sums(node->tape, node->outputs[0], dbias, h.data, shape_rows(x->shape),
                    weight->shape.size[0]);
}

static void linear_activation_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    Tensor *out = node->outputs[0], *y = node->kept[KEPT_Y] ? node->kept[KEPT_Y] : out;
    const Activation activation = *(const Activation *)node->saved;
    int64_t R = shape_rows(x->shape), O = weight->shape.size[0];
    Tensor *h = tape_tensor_of(node->tape, out->type, shape(R, O));
    Tensor *partial = tape_scratch(node->tape, shape(row_blocks(R), O));
    DEVICE_CALL(out, linear_activate_backward,
                (h->data, partial->data, tape_upstream(node, 0), y->data, activation, R, O));
    contribute_products(node, operand_of(h));
    Gradient dbias = tape_contribution(node, bias);
    if (dbias.data)
        sum_row_blocks(bias->device, dbias, partial->data, R, O);
    tape_scratch_free(node->tape, partial);
    tape_scratch_free(node->tape, h);
}

/* ----------------------------------------------------------------------------------------- forward */
static bool linear_pass_cpu(LinearPass pass)
{
    (void)pass;
    return false;
}

/* Fills out, and y unless that is NULL; without a bias there is no activation. copy: of the
 * parameters, or NULL. */
static void forward(Tape *tape, const char *operation, Tensor *out, Tensor *y, Tensor *x,
                    Tensor *weight, Tensor *bias, Tensor *copy, Activation activation)
{
    int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];
    Real *y_data = y ? y->data : NULL;
    if (bias) {
        const Real *bias_data = copy ? tensor_at(copy, tensor_count(copy) - O) : bias->data;
        LinearPass pass = { out->data,  y_data,
                            x->data,    copy ? copy->data : weight->data,
                            bias_data,  R,
                            I,          O,
                            activation, tape_precision(tape),
                            out->type,  operation };
        if (DEVICE_CALL(out, linear_pass, (pass)))
            return;
    }
    product(tape, operation, result_in(y ? y : out), operand_of(x),
            operand_of(copy ? copy : weight),
            (Product){ .n = R, .k = I, .m = O, .transpose_b = true, .count = 1 });
    if (bias)
        DEVICE_CALL(out, linear_activate, (out->data, y_data, bias->data, activation, R, O));
}

typedef struct Labels {
    const char *operation, *x, *weight, *bias;
} Labels;

static void check(Tape *tape, Labels labels, Tensor *x, Tensor *weight, Tensor *bias)
{
    tape_use(tape, labels.x, x);
    tape_use_real(tape, labels.weight, weight);
    if (weight->shape.rank != 2)
        tape_error(tape, "%s is %s, expected two axes, [out, in]", labels.weight,
                   shape_text(weight->shape).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != weight->shape.size[1])
        tape_error(tape, "%s is %s, expected %lld in its last axis: weight is %s", labels.x,
                   shape_text(x->shape).text, (long long)weight->shape.size[1],
                   shape_text(weight->shape).text);
    if (!bias)
        return;
    tape_use_real(tape, labels.bias, bias);
    if (!shape_equal(bias->shape, shape(weight->shape.size[0])))
        tape_error(tape, "%s is %s, expected %s: weight is %s", labels.bias,
                   shape_text(bias->shape).text, shape_text(shape(weight->shape.size[0])).text,
                   shape_text(weight->shape).text);
}

/* Computes and records. */
static Tensor *linear(Tape *tape, Labels labels, Tensor *x, Tensor *weight, Tensor *bias,
                      Activation activation)
{
    check(tape, labels, x, weight, bias);
    const TensorType type = product_type(tape);
    x = op_cast(tape, x, type);
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = weight->shape.size[0];
    Tensor *out = tape_tensor_of(tape, type, out_shape), *y = NULL, *copy = NULL;
    if ((activation == ACTIVATION_GELU || activation == ACTIVATION_GELU_TANH) &&
        tape_is_recording(tape))
        y = tape_tensor_of(tape, type, out_shape);
    if (type == TENSOR_BF16)
        copy = copy_parameters(tape, weight, bias);
    forward(tape, labels.operation, out, y, x, weight, bias, copy, activation);
    tape_record(tape,
                (Node){ .name = labels.operation,
                        .backward = activation == ACTIVATION_NONE ? linear_backward
                                                                  : linear_activation_backward,
                        .inputs = { x, weight, bias },
                        .outputs = { out },
                        .kept = { [KEPT_Y] = y, [KEPT_COPY] = copy },
                        .saved = tape_save(tape, &activation, sizeof activation) });
    return out;
}

#define LABELS(name) ((Labels){ name, name ": x", name ": weight", name ": bias" })

Tensor *op_linear(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias)
{
    return linear(tape, LABELS("op_linear"), x, weight, bias, ACTIVATION_NONE);
}

Tensor *op_linear_activation(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias,
                             Activation activation)
{
    if ((int)activation < ACTIVATION_NONE || (int)activation > ACTIVATION_GELU_TANH)
        tape_error(tape, "op_linear_activation: there is no activation %d", (int)activation);
    tape_use(tape, "op_linear_activation: bias", bias); /* NULL is not enough here */
    return linear(tape, LABELS("op_linear_activation"), x, weight, bias, activation);
}
