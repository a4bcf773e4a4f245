/* layernorm of each of R rows of C elements (Ba, Kiros, Hinton 2016)
 *   mean = sum_c x_c / C     variance = sum_c (x_c - mean)^2 / C     r = 1 / sqrt(variance + eps)
 *   n_c = (x_c - mean) r     out_c = n_c weight_c + bias_c
 * Backward, g = dL/dout, h_c = g_c weight_c = dL/dn_c:
 *   dweight_c <- sum over rows of g_c n_c          dbias_c <- sum over rows of g_c
 *   dmean / dx_j = 1 / C
 *   dvariance / dx_j = sum_c 2 (x_c - mean) ([c = j] - 1 / C) / C = 2 (x_j - mean) / C,
 *     because sum_c (x_c - mean) = 0
 *   dr / dx_j = -r^3 / 2 dvariance / dx_j = -r^3 (x_j - mean) / C = -r^2 n_j / C
 *   dn_c / dx_j = ([c = j] - 1 / C) r + (x_c - mean) dr / dx_j = r ([c = j] - 1 / C - n_c n_j / C)
 *   dx_j <- sum_c h_c dn_c / dx_j
 *         = r (sum_c h_c [c = j] - sum_c h_c / C - sum_c h_c n_c n_j / C)
 *         = r (h_j - sum_c h_c / C - n_j sum_c h_c n_c / C), as [c = j] selects one term of its sum
 *           and n_j does not depend on c
 * Saved for the backward pass: mean and r, two values per row (`statistics`). */
#include "ops/rows/kernels.h"
#include "ops/rows/layernorm.h"

/* out [R, C], statistics [R], x [R, C], weight [C], bias [C] */
void layernorm_forward_cpu(TensorType type, Real *out, Statistics *statistics, const Real *x,
                           const Real *weight, const Real *bias, Real eps, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.2))
    for (int64_t row = 0; row < R; row++)
        BY_STORAGE(type, T,
                   statistics[row] =
                       layernorm_row(T, elements_at(T, out, row * C), T, elements_at(T, x, row * C),
                                     weight, bias, eps, C));
}

/* dx [R, C] or NULL; dweight, dbias [parts, C] or both NULL */
void layernorm_backward_cpu(TensorType type, Real *dx, bool accumulate, Real *dweight, Real *dbias,
                            int64_t parts, const Real *dout, const Real *x, const Real *weight,
                            const Statistics *statistics, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *C, 0.3))
    for (int64_t i = 0; i < parts; i++) {
        WeightRows sums = weight_rows(dweight, dbias, i, C);
        for (int64_t row = part_start(i, parts, R); row < part_start(i + 1, parts, R); row++)
            BY_STORAGE(type, T,
                       layernorm_row_backward(dx ? elements_at(T, dx, row * C) : NULL, accumulate,
                                              sums, T, elements_at(T, dout, row * C), T,
                                              elements_at(T, x, row * C), weight, statistics[row],
                                              C));
    }
}

static void layernorm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    WeightSums sums = weight_sums_begin(node, x, weight, bias);
    Gradient dx = tape_contribution(node, x);
    KERNEL_CALL(x, layernorm_backward,
                (dx.data, dx.accumulate, sums.dweight, sums.dbias, sums.parts,
                 tape_upstream(node, 0), x->data, weight->data,
                 (const Statistics *)node->saved[0]->data, shape_rows(x->shape),
                 shape_columns(x->shape)));
    weight_sums_end(node, sums, weight, bias);
}

Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, double eps)
{
    tape_use(tape, "op_layernorm: x", x);
    tape_use_real(tape, "op_layernorm: weight", weight);
    tape_use_real(tape, "op_layernorm: bias", bias);
    layernorm_check(tape, "op_layernorm", x, weight, bias, eps);
    int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *statistics = tape_tensor(tape, shape(R, 2));
    KERNEL_CALL(out, layernorm_forward,
                (out->data, (Statistics *)statistics->data, x->data, weight->data, bias->data,
                 (Real)eps, R, C));
    tape_record(tape, (Node){ "op_layernorm", layernorm_backward, .inputs = { x, weight, bias },
                              .outputs = { out }, .saved = { statistics } });
    return out;
}

/* ------------------------------------------------------------ shared with residual_layernorm */

void layernorm_check(Tape *tape, const char *operation, const Tensor *x, const Tensor *weight,
                     const Tensor *bias, double eps)
{
    if (x->shape.rank < 1)
        tape_error(tape, "%s: x is a scalar, expected one axis at least", operation);
    Shape expected = shape(shape_columns(x->shape));
    if (!shape_equal(weight->shape, expected) || !shape_equal(bias->shape, expected))
        tape_error(tape, "%s: weight %s, bias %s, expected %s: x %s", operation,
                   tensor_text(weight).text, tensor_text(bias).text, shape_text(expected).text,
                   tensor_text(x).text);
    if (!((Real)eps > 0 && (Real)eps < (Real)INFINITY))
        tape_error(tape, "%s: eps is %g, expected more than 0", operation, eps);
}

static bool requires_grad(const Tensor *tensor)
{
    return tensor_root(tensor)->requires_grad;
}

/* The number of parts that R rows are cut into; one thread, on CUDA one block, processes a part. */
int64_t layernorm_parts_cpu(int64_t R)
{
    return row_blocks(R);
}

WeightSums weight_sums_begin(Node *node, Tensor *x, Tensor *weight, Tensor *bias)
{
    const int64_t C = shape_columns(x->shape);
    WeightSums sums = { .parts = DEVICE_CALL(x->device, layernorm_parts, (shape_rows(x->shape))) };
    if (requires_grad(weight) || requires_grad(bias)) {
        sums.scratch = tape_scratch(node->tape, shape(2, sums.parts, C));
        sums.dweight = sums.scratch->data;
        sums.dbias = sums.dweight + sums.parts * C;
    }
    return sums;
}

void weight_sums_end(Node *node, WeightSums sums, Tensor *weight, Tensor *bias)
{
    const int64_t C = shape_columns(weight->shape);
    Gradient dweight = tape_contribution(node, weight), dbias = tape_contribution(node, bias);
    if (tensor_root(weight) == tensor_root(bias)) { /* one gradient tensor: add in two passes */
        add_parts(weight->device, dweight, sums.dweight, sums.parts, C);
        dweight.data = NULL;
    }
    add_part_pairs(weight->device, dweight, dbias, sums.dweight, sums.parts, C);
    tape_scratch_free(node->tape, sums.scratch);
}
