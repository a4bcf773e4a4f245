/* Polynomial features of degree 2 (Katharopoulos et al. 2020, section 3.2.1), of rows x [D]
 *   out = [1, sqrt 2 x_i (every i), x_i^2 (every i), sqrt 2 x_i x_j (every i < j)]
 * so that for two rows q and k
 *   out(q).out(k) = 1 + 2 sum_i q_i k_i + sum_i (q_i k_i)^2 + 2 sum_{i<j} q_i k_i q_j k_j
 *                 = (1 + q.k)^2
 * exactly: never negative, and linear attention with these features is attention with this kernel.
 * Backward, g = dL/dout; g_i, g_ii and g_ij = g_ji belong to sqrt 2 x_i, x_i^2 and sqrt 2 x_i x_j:
 *   dx_i <- sqrt 2 g_i + 2 g_ii x_i + sqrt 2 sum_{j != i} g_ij x_j
 * The order of the pairs: polynomial.h. */
#include "ops/attention/features/kernels.h"
#include "ops/attention/features/polynomial.h"
#include "ops/shared/internal.h"

/* sum[a + i] += factor g[i] x[b + i] and sum[b + i] += factor g[i] x[a + i], for n pairs. */
ALWAYS_INLINE void add_pairs(int T, Real *sum, const Real *x, Real factor, const Real *g, int64_t a,
                             int64_t b, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[a + i] += factor * load(T, g, i) * load(T, x, b + i);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[b + i] += factor * load(T, g, i) * load(T, x, a + i);
}

/* sum [D] <- the row of the gradient, g [F], x [D] */
ALWAYS_INLINE void backward_row(int T, Real *sum, bool accumulate, const Real *g, const Real *x,
                                int64_t D)
{
#pragma omp simd
    for (int64_t i = 0; i < D; i++)
        contribute(TENSOR_REAL, sum, i, accumulate, SQRT_2 * load(T, g, 1 + i));
    g = elements_at(T, g, 1 + D);
    for (int64_t d = 0; d <= D / 2; d++, g = elements_at(T, g, D)) {
        const int64_t pairs = polynomial_pairs(d, D), inside = pairs < D - d ? pairs : D - d;
        const Real factor = polynomial_factor(d);
        add_pairs(T, sum, x, factor, g, 0, d, inside);
        add_pairs(T, sum, x, factor, elements_at(T, g, inside), inside, inside + d - D,
                  pairs - inside);
    }
}

/* out [R, F], x [R, D] */
void polynomial_features_forward_cpu(TensorType type, Real *out, const Real *x, int64_t R,
                                     int64_t F, int64_t D)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *F, 0.3))
    for (int64_t r = 0; r < R; r++)
        BY_STORAGE(type, T,
                   polynomial_row(T, elements_at(T, out, r * F), elements_at(T, x, r * D), D));
}

/* dx [R, D], dout [R, F], x [R, D]; sums [R, D]: scratch in which bf16 gradients are summed. */
void polynomial_features_backward_cpu(TensorType type, Real *dx, bool accumulate, Real *sums,
                                      const Real *dout, const Real *x, int64_t R, int64_t F,
                                      int64_t D)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *F, 0.3))
    for (int64_t r = 0; r < R; r++) {
        if (type == TENSOR_REAL) {
            backward_row(TENSOR_REAL, dx + r * D, accumulate, dout + r * F, x + r * D, D);
            continue;
        }
        Real *sum = sums + r * D;
        backward_row(TENSOR_BF16, sum, false, elements_at(TENSOR_BF16, dout, r * F),
                     elements_at(TENSOR_BF16, x, r * D), D);
#pragma omp simd
        for (int64_t i = 0; i < D; i++)
            contribute(TENSOR_BF16, dx, r * D + i, accumulate, sum[i]);
    }
}

static void polynomial_features_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    Gradient dx = tape_contribution(node, x);
    const bool summed = x->type == TENSOR_BF16 && !device_is_cuda(x->device);
    Tensor *sums = summed ? tape_scratch(node->tape, x->shape) : NULL;
    KERNEL_CALL(x, polynomial_features_backward,
                (dx.data, dx.accumulate, sums ? sums->data : NULL, tape_upstream(node, 0), x->data,
                 shape_rows(x->shape), shape_columns(node->outputs[0]->shape),
                 shape_columns(x->shape)));
    tape_scratch_free(node->tape, sums);
}

Tensor *op_polynomial_features(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_polynomial_features: x", x);
    if (x->shape.rank < 1)
        tape_error(tape, "op_polynomial_features: x %s, expected one axis at least, [..., D]",
                   tensor_text(x).text);
    const int64_t D = shape_columns(x->shape), F = 1 + D + D * (D + 1) / 2;
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = F;
    Tensor *out = tape_tensor_of(tape, x->type, out_shape);
    KERNEL_CALL(out, polynomial_features_forward, (out->data, x->data, shape_rows(x->shape), F, D));
    tape_record(tape, (Node){ .name = "op_polynomial_features",
                              .backward = polynomial_features_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
