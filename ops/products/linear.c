/* linear: out = f(y), y = x weight^T + bias, x [R, I], weight [O, I], bias [O]; f is the activation
 * or the identity
 *   y_ro = sum_i x_ri weight_oi + bias_o
 * Backward, g = dL/dout, h = dL/dy:
 *   h_ro = g_ro f'(y_ro)
 *   dx_ri <- sum_o h_ro weight_oi     dweight_oi <- sum_r h_ro x_ri     dbias_o <- sum_r h_ro
 * so dx = h weight, dweight = h^T x, and dbias is h's sum over the rows.
 * One pass after the product adds the bias and applies f, unless the product's epilogue does both.
 * In the backward pass one pass computes h and its column sums.
 * Saved for the backward pass: y for gelu; for relu nothing more than out, since out > 0 where
 * y > 0, and on CUDA a mask of one bit per element, which the products' epilogues read. */
#include "ops/products/linear.h"
#include "ops/kernels.h"
#include "ops/shared/columns.h"
#include "ops/shared/internal.h"
#include "ops/products/product.h"

/* ------------------------------------------------------------------------------- the activation */

/* One row: y, or out if y is NULL, holds the product. */
ALWAYS_INLINE void activate_row(Activation activation, int T, Real *out, Real *y, const Real *bias,
                                int64_t O)
{
    if (y) {
#pragma omp simd
        for (int64_t o = 0; o < O; o++) {
            const Real value = load(T, y, o) + bias[o];
            store(T, y, o, value);
            store(T, out, o, activation_of(activation, value));
        }
    } else {
#pragma omp simd
        for (int64_t o = 0; o < O; o++)
            store(T, out, o, activation_of(activation, load(T, out, o) + bias[o]));
    }
}

/* y [R, O] (if NULL: out) += bias [O] in each row, out [R, O] = f(y). oneDNN's products with a
 * fused bias are no faster. */
void linear_activate_cpu(TensorType type, Real *out, Real *y, const Real *bias,
                         Activation activation, int64_t R, int64_t O)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *O, 0.3))
    for (int64_t r = 0; r < R; r++)
        BY_STORAGE(type, T,
                   BY_ACTIVATION(activation, activate_row, T, elements_at(T, out, r * O),
                                 y ? elements_at(T, y, r * O) : NULL, bias, O));
}

ALWAYS_INLINE void activate_row_backward(Activation activation, int T, Real *h, Real *sum,
                                         const Real *g, const Real *y, int64_t O)
{
#pragma omp simd
    for (int64_t o = 0; o < O; o++) {
        const Real value = activation_gradient(activation, load(T, g, o), load(T, y, o));
        store(T, h, o, value);
        sum[o] += value;
    }
}

/* h [R, O] = g [R, O] f'(y [R, O]), and the column sums of each block of rows, partial
 * [row_blocks(R), O]; for relu y may be out. */
void linear_activate_backward_cpu(TensorType type, Real *h, Real *partial, const Real *g,
                                  const Real *y, Activation activation, int64_t R, int64_t O)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *O, 0.4))
    for (int64_t i = 0; i < row_blocks(R); i++) {
        Real *sum = partial + i * O;
        memset(sum, 0, (size_t)O * sizeof *sum);
        for (int64_t r = row_block_start(i, R); r < row_block_start(i + 1, R); r++)
            BY_STORAGE(type, T,
                       BY_ACTIVATION(activation, activate_row_backward, T, elements_at(T, h, r * O),
                                     sum, elements_at(T, g, r * O), elements_at(T, y, r * O), O));
    }
}

/* ------------------------------------------------------------------------------------------- bf16
 * Activations are bf16, parameters are float32, and a product's operands have one dtype: the
 * product reads bf16 copies of the weight and, in its epilogue, of the bias, either the copies of
 * the Params or the layer's own. The backward pass also reads the weight's copy. */

static Real *bf16_copy_of(Tensor *weight)
{
    return weight->bf16_copy ? weight->bf16_copy(weight, false) : NULL;
}

void linear_copy_cpu(Real *to, const Real *weight, int64_t n, int64_t bias_at, const Real *bias,
                     int64_t m)
{
    cast_cpu((Gradient){ to, false }, weight, true, n);
    cast_cpu((Gradient){ elements_at(TENSOR_BF16, to, bias_at), false }, bias, true, m);
}

/* weight, then at bias_at the bias, in bf16. */
static Tensor *copy_parameters(Tape *tape, const Tensor *weight, const Tensor *bias)
{
    enum { UNIT = 128 }; /* elements: aligns the bias for vector loads */
    const int64_t n = tensor_count(weight), m = bias ? tensor_count(bias) : 0;
    const int64_t bias_at = (n + UNIT - 1) / UNIT * UNIT;
    Tensor *copy = tape_tensor_of(tape, TENSOR_BF16, shape(bias_at + m));
    DEVICE_CALL(copy->device, linear_copy,
                (copy->data, weight->data, n, bias_at, bias ? bias->data : NULL, m));
    return copy;
}

/* A layer's parameters in the dtype of its products. */
typedef struct Parameters {
    Operand weight;
    Real *bias;   /* or NULL */
    Tensor *copy; /* the layer's own copy of both, or NULL */
} Parameters;

static Parameters parameters_for(Tape *tape, TensorType type, Tensor *weight, Tensor *bias)
{
    if (type != TENSOR_BF16)
        return (Parameters){ operand_of(weight), bias ? bias->data : NULL, NULL };
    Real *w = bf16_copy_of(weight), *b = bias ? bf16_copy_of(bias) : NULL;
    if (w && (b || !bias))
        return (Parameters){ { w, type }, b, NULL };
    Tensor *copy = copy_parameters(tape, weight, bias);
    const int64_t bias_at = tensor_count(copy) - weight->shape.size[0];
    return (Parameters){ operand_of(copy), bias ? tensor_at(copy, bias_at) : NULL, copy };
}

/* ------------------------------------------------------------------------------------- products */
/* Returns false and computes nothing if the device has no such product. */
static bool fused_product(Tape *tape, const char *operation, Result out, Operand a, Operand b,
                          Product size, Epilogue epilogue)
{
    return CUDA_CALL(tape_device(tape), fused_product,
                     (operation, tape_precision(tape), out, a, b, size, epilogue), false);
}

enum { SAVED_Y, SAVED_COPY, SAVED_MASK };

/* ---------------------------------------------------------------------------------------- backward
 * If the device has epilogues, the product dx = h weight also multiplies by f' of the layer that
 * computed x, which saves that layer a pass over its gradient, and dweight's product sums dbias. */

static void linear_backward(Node *node);
static void linear_activation_backward(Node *node);

/* Tries to store dx = (h weight) f'(y), where x = f(y) is the output of another linear layer. That
 * layer must be the previous node, so that all other contributions to x's gradient are complete,
 * and there must be none, since whether the epilogue multiplies them too is not documented. x's
 * gradient then holds dL/dy, so no reader of dL/dx may have called tensor_keep(x). */
static bool contribute_derivative(Node *node, Gradient dx, Operand h, Operand weight, Product size)
{
    Tensor *x = node->inputs[0];
    Node *producer = node->previous;
    if (dx.accumulate || x->keep || !producer || producer->outputs[0] != x ||
        producer->backward != linear_activation_backward)
        return false;
    const Activation activation = *(const Activation *)producer->attributes;
    Tensor *saved = producer->saved[activation == ACTIVATION_RELU ? SAVED_MASK : SAVED_Y];
    const Epilogue epilogue = { EPILOGUE_DERIVATIVE, activation, NULL, saved ? saved->data : NULL };
    return saved &&
           fused_product(node->tape, node->name, result_for(dx, x), h, weight, size, epilogue);
}

static void contribute_input(Node *node, Operand h)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *copy = node->saved[SAVED_COPY];
    const Operand w = copy                     ? operand_of(copy)
                      : x->type == TENSOR_BF16 ? (Operand){ bf16_copy_of(weight), x->type }
                                               : operand_of(weight);
    const Product size = { .n = shape_rows(x->shape),
                           .k = weight->shape.size[0],
                           .m = weight->shape.size[1],
                           .count = 1 };
    Gradient dx = tape_contribution(node, x); /* [R, I] = h [R, O] weight [O, I] */
    if (dx.data && contribute_derivative(node, dx, h, w, size))
        node->previous->backward = linear_backward;
    else if (dx.data)
        product(node->tape, node->name, result_for(dx, x), h, w, size);
}

/* dweight [O, I] = h^T [O, R] x [R, I] */
static Product weight_product(const Node *node)
{
    const Tensor *x = node->inputs[0], *weight = node->inputs[1];
    return (Product){ .n = weight->shape.size[0],
                      .k = shape_rows(x->shape),
                      .m = weight->shape.size[1],
                      .transpose_a = true,
                      .count = 1 };
}

/* Tries to compute both in one product. Its epilogue cannot accumulate dbias. */
static bool contribute_weight_and_bias(Node *node, Gradient dweight, Gradient dbias, Operand h)
{
    const int64_t O = node->inputs[1]->shape.size[0];
    Tensor *sums = dbias.accumulate ? tape_scratch(node->tape, shape(O)) : NULL;
    const Epilogue epilogue = { EPILOGUE_BIAS_GRADIENT, ACTIVATION_NONE,
                                sums ? sums->data : dbias.data, NULL };
    const bool done = fused_product(node->tape, node->name, result_for(dweight, node->inputs[1]), h,
                                    operand_of(node->inputs[0]), weight_product(node), epilogue);
    if (done && sums)
        add_parts(sums->device, dbias, sums->data, 1, O);
    tape_scratch_free(node->tape, sums);
    return done;
}

static void contribute_weight(Node *node, Gradient dweight, Operand h)
{
    if (dweight.data)
        product(node->tape, node->name, result_for(dweight, node->inputs[1]), h,
                operand_of(node->inputs[0]), weight_product(node));
}

static void linear_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const Operand h = upstream_operand(node); /* f(y) = y: h = g */
    contribute_input(node, h);
    Gradient dweight = tape_contribution(node, weight), dbias = tape_contribution(node, bias);
    if (dweight.data && dbias.data && contribute_weight_and_bias(node, dweight, dbias, h))
        return;
    contribute_weight(node, dweight, h);
    if (dbias.data) /* [O] */
        column_sums(node->tape, node->outputs[0], dbias, h.data, shape_rows(x->shape),
                    weight->shape.size[0]);
}

static void linear_activation_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    Tensor *out = node->outputs[0], *y = node->saved[SAVED_Y] ? node->saved[SAVED_Y] : out;
    const Activation activation = *(const Activation *)node->attributes;
    int64_t R = shape_rows(x->shape), O = weight->shape.size[0];
    Tensor *h = tape_tensor_of(node->tape, out->type, shape(R, O));
    Tensor *partial = tape_scratch(node->tape, shape(row_blocks(R), O));
    KERNEL_CALL(out, linear_activate_backward,
                (h->data, partial->data, tape_upstream(node, 0), y->data, activation, R, O));
    contribute_input(node, operand_of(h));
    contribute_weight(node, tape_contribution(node, weight), operand_of(h));
    Gradient dbias = tape_contribution(node, bias);
    if (dbias.data)
        add_parts(bias->device, dbias, partial->data, row_blocks(R), O);
    tape_scratch_free(node->tape, partial);
    tape_scratch_free(node->tape, h);
}

/* -------------------------------------------------------------------------------------- forward */

/* Allocates y or the mask if the tape records. */
static void allocate_saved(Tape *tape, Node *node, Activation activation)
{
    const Tensor *out = node->outputs[0];
    const int64_t words = relu_mask_bits(shape_columns(out->shape)) / 32;
    if (!tape_is_recording(tape))
        return;
    if (activation == ACTIVATION_GELU || activation == ACTIVATION_GELU_TANH)
        node->saved[SAVED_Y] = tape_tensor_of(tape, out->type, out->shape);
    if (activation == ACTIVATION_RELU && device_is_cuda(out->device))
        node->saved[SAVED_MASK] = tape_tensor_i32(tape, shape(shape_rows(out->shape), words));
}

/* Computes the node's output; without a bias there is no activation. A mask that the product cannot
 * write is freed: the derivative then comes from out. */
static void forward(Tape *tape, Node *node, Activation activation)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    Tensor *out = node->outputs[0];
    int64_t R = shape_rows(x->shape), I = weight->shape.size[1], O = weight->shape.size[0];
    const Product size = { .n = R, .k = I, .m = O, .transpose_b = true, .count = 1 };
    const Parameters p = parameters_for(tape, out->type, weight, bias);
    node->saved[SAVED_COPY] = p.copy;
    allocate_saved(tape, node, activation);
    Tensor *y = node->saved[SAVED_Y], *mask = node->saved[SAVED_MASK], *saved = y ? y : mask;
    Epilogue e = { EPILOGUE_ACTIVATE, activation, p.bias, saved ? saved->data : NULL };
    const Result result = result_in(out);
    if (bias && fused_product(tape, node->name, result, operand_of(x), p.weight, size, e))
        return;
    if (mask) {
        tape_scratch_free(tape, mask);
        node->saved[SAVED_MASK] = NULL;
        e.saved = NULL;
        if (fused_product(tape, node->name, result, operand_of(x), p.weight, size, e))
            return;
    }
    product(tape, node->name, result_in(y ? y : out), operand_of(x), p.weight, size);
    if (bias)
        KERNEL_CALL(out, linear_activate,
                    (out->data, y ? y->data : NULL, bias->data, activation, R, O));
}

typedef struct Labels {
    const char *operation, *x, *weight, *bias;
} Labels;

static void check(Tape *tape, Labels labels, Tensor *x, Tensor *weight, Tensor *bias)
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

static Tensor *linear(Tape *tape, Labels labels, Tensor *x, Tensor *weight, Tensor *bias,
                      Activation activation)
{
    check(tape, labels, x, weight, bias);
    const TensorType type = product_type(tape);
    x = op_cast(tape, x, type);
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = weight->shape.size[0];
    Tensor *out = tape_tensor_of(tape, type, out_shape);
    Node node = { labels.operation,
                  activation == ACTIVATION_NONE ? linear_backward : linear_activation_backward,
                  .inputs = { x, weight, bias }, .outputs = { out },
                  .attributes = tape_save(tape, &activation, sizeof activation) };
    forward(tape, &node, activation);
    tape_record(tape, node);
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
    if ((unsigned)activation > ACTIVATION_GELU_TANH)
        tape_error(tape, "op_linear_activation: there is no activation %d", (int)activation);
    tape_use(tape, "op_linear_activation: bias", bias); /* raises if NULL */
    return linear(tape, LABELS("op_linear_activation"), x, weight, bias, activation);
}
