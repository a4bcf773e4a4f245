/* Polynomial features of degree 2 (Katharopoulos et al. 2020, section 3.2.1), of rows x [D]
 *   out = [1, sqrt 2 x_i (every i), x_i^2 (every i), sqrt 2 x_i x_j (every i < j)]
 * so that for two rows q and k
 *   out(q).out(k) = 1 + 2 sum_i q_i k_i + sum_i (q_i k_i)^2 + 2 sum_{i<j} q_i k_i q_j k_j
 *                 = (1 + q.k)^2
 * exactly: never negative, and linear attention with these features is attention with this kernel.
 * Backward, g = dL/dout; g_i, g_ii and g_ij = g_ji belong to sqrt 2 x_i, x_i^2 and sqrt 2 x_i x_j:
 *   dx_i <- sqrt 2 g_i + 2 g_ii x_i + sqrt 2 sum_{j != i} g_ij x_j
 * The order of the pairs: kernels.h. */
#include "ext/features/features.h"
#include "ext/features/kernels.h"

static void polynomial_forward_plain(Real *out, const Real *x, FeatureSizes s)
{
    EACH_ROW(r, s.R, s.F)
        polynomial_row(out + r * s.F, x + r * s.D, s.D);
}

/* dx_a <- dx_a + factor g x_b and dx_b <- dx_b + factor g x_a, for n consecutive pairs (a, b) */
static inline void add_polynomial_pairs(Real *dx_a, Real *dx_b, const Real *x_a, const Real *x_b,
                                        const Real *g, Real factor, int64_t n)
{
    PRAGMA(omp simd)
    for (int64_t i = 0; i < n; i++)
        dx_a[i] += factor * g[i] * x_b[i];
    PRAGMA(omp simd)
    for (int64_t i = 0; i < n; i++)
        dx_b[i] += factor * g[i] * x_a[i];
}

static void polynomial_backward_plain(Gradient dx, const Real *dout, const Real *x, FeatureSizes s)
{
    const int64_t D = s.D;
    EACH_ROW(r, s.R, s.F) {
        const Real *g = dout + r * s.F, *x_r = x + r * D;
        Real *dx_r = dx.data + r * D;
        for (int64_t i = 0; i < D; i++)
            gradient_add(dx, r * D + i, SQRT_2 * g[1 + i]);
        g += 1 + D;
        for (int64_t d = 0; d <= D / 2; d++, g += D) {
            const int64_t pairs = polynomial_pairs(d, D), inside = pairs < D - d ? pairs : D - d;
            const Real factor = polynomial_factor(d);
            add_polynomial_pairs(dx_r, dx_r + d, x_r, x_r + d, g, factor, inside);
            add_polynomial_pairs(dx_r + inside, dx_r, x_r + inside, x_r, g + inside, factor,
                                 pairs - inside);
        }
    }
}

const PolynomialFeatureKernels polynomial_features_plain = { polynomial_forward_plain,
                                                             polynomial_backward_plain };

static void polynomial_features_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const int64_t D = shape_columns(x->shape);
    const FeatureSizes s = { shape_rows(x->shape), polynomial_count(D), D };
    polynomial_features_kernels(x)->backward(tape_contribution(node, x), tape_upstream(node, 0),
                                             x->data, s);
}

Tensor *op_polynomial_features(Tape *tape, Tensor *x)
{
    tape_use(tape, "op_polynomial_features: x", x);
    if (x->shape.rank < 1)
        tape_error(tape, "op_polynomial_features: x %s, expected one axis at least, [..., D]",
                   tensor_text(x).text);
    const int64_t D = shape_columns(x->shape);
    const FeatureSizes s = { shape_rows(x->shape), polynomial_count(D), D };
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = s.F;
    Tensor *out = tape_tensor_of(tape, x->type, out_shape);
    polynomial_features_kernels(x)->forward(out->data, x->data, s);
    tape_record(tape, (Node){ .name = "op_polynomial_features",
                              .backward = polynomial_features_backward,
                              .inputs = { x },
                              .outputs = { out } });
    return out;
}
