/* Positive random features of the exponential (Choromanski et al. 2021, Rethinking Attention with
 * Performers, lemma 1), of rows x [R, D] and a projection w [F, D] whose rows are normal
 *   y_rf = sum_d x_rd w_fd      n_r = |x_r|^2 / 2      out_rf = e^(y_rf - n_r) / sqrt F
 * Since E e^(w.u) = e^(|u|^2 / 2) for a normal w, two rows q and k have
 *   E out(q).out(k) = E e^(w.(q + k)) e^(-|q|^2 / 2 - |k|^2 / 2)
 *                   = e^(|q + k|^2 / 2 - |q|^2 / 2 - |k|^2 / 2) = e^(q.k)
 * Orthogonal rows of w, each still normal by itself, do not change this expectation and reduce the
 * variance (section 2.3).
 *
 * Every feature is positive, and y - n = |w|^2 / 2 - |x - w|^2 / 2 is at most |w|^2 / 2, which is
 * about D / 2; in float, e^x overflows for x > 88. The authors' code also subtracts the largest
 * exponent, of queries per row, of keys per sequence: such a factor cancels in the quotient of
 * attention. For queries, op_softmax of y does so, and needs no n. Keys are better left alone: a
 * maximum over later positions would be in a sequence's running sums, which then could not be
 * continued from a state.
 *
 * Backward, g = dL/dout, h = g out:
 *   d out_rf / dx_rd = out_rf (w_fd - x_rd)          d out_rf / dw_fd = out_rf x_rd
 *   dx_rd <- sum_f h_rf w_fd - (sum_f h_rf) x_rd      dw_fd <- sum_r h_rf x_rd
 * Saved for the backward pass: out, which is on the tape already. */
#include "ext/features/features.h"
#include "ext/features/kernels.h"

static void random_forward_plain(Real *out, const Real *y, const Real *x, FeatureSizes s)
{
    const int64_t R = s.R, F = s.F, D = s.D;
    const Real scale = (Real)(1 / sqrt((double)F));
    EACH_ROW(r, R, F) {
        double n = 0;
        SUM(+, n)
        for (int64_t d = 0; d < D; d++)
            n += x[r * D + d] * x[r * D + d] / 2;
        PRAGMA(omp simd)
        for (int64_t f = 0; f < F; f++)
            out[r * F + f] = scale * real_exp(y[r * F + f] - (Real)n);
    }
}

static void random_backward_plain(Real *h, Gradient dx, const Real *dout, const Real *out,
                                  const Real *x, FeatureSizes s)
{
    const int64_t R = s.R, F = s.F, D = s.D;
    EACH_ROW(r, R, F) {
        double sum = 0;
        SUM(+, sum)
        for (int64_t f = 0; f < F; f++)
            sum += (h[r * F + f] = dout[r * F + f] * out[r * F + f]);
        for (int64_t d = 0; dx.data && d < D; d++)
            gradient_add(dx, r * D + d, -(Real)sum * x[r * D + d]);
    }
}

const RandomFeatureKernels random_features_plain = { random_forward_plain, random_backward_plain };

static void random_features_backward(Node *node)
{
    Tensor *x = node->inputs[0], *w = node->inputs[1], *out = node->outputs[0];
    const int64_t R = shape_rows(x->shape), F = w->shape.size[0], D = w->shape.size[1];
    Gradient dx = tape_contribution(node, x);
    Tensor *h = tape_tensor_of(node->tape, out->type, shape(R, F));
    random_features_kernels(out)->backward(h->data, dx, tape_upstream(node, 0), out->data, x->data,
                                           (FeatureSizes){ R, F, D });
    dx.accumulate = true;
    if (dx.data) /* [R, D] = h [R, F] w [F, D] */
        op_product(node->tape, result_for(dx, x), operand_of(h), operand_of(w),
                   (Product){ .n = R, .k = F, .m = D, .count = 1 });
    op_contribute_product(node, w, operand_of(h),
                          operand_of(x), /* dw [F, D] <- h^T [F, R] x [R, D] */
                          (Product){ .n = F, .k = R, .m = D, .transpose_a = true, .count = 1 });
    tape_scratch_free(node->tape, h);
}

static void check_random_features(Tape *tape, Tensor *x, Tensor *projection)
{
    tape_use(tape, "op_random_features: x", x);
    tape_use(tape, "op_random_features: projection", projection);
    if (projection->shape.rank != 2)
        tape_error(tape, "op_random_features: projection %s, expected two axes, [F, D]",
                   tensor_text(projection).text);
    if (x->shape.rank < 1 || shape_columns(x->shape) != projection->shape.size[1])
        tape_error(tape, "op_random_features: x %s, expected %lld in its last axis: projection %s",
                   tensor_text(x).text, (long long)projection->shape.size[1],
                   tensor_text(projection).text);
}

Tensor *op_random_features(Tape *tape, Tensor *x, Tensor *projection)
{
    check_random_features(tape, x, projection);
    const TensorType type = product_type(tape);
    x = op_cast(tape, x, type);
    projection = op_cast(tape, projection, type);
    const int64_t R = shape_rows(x->shape), F = projection->shape.size[0];
    const int64_t D = projection->shape.size[1];
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = F;
    Tensor *out = tape_tensor_of(tape, type, out_shape);
    Tensor *y = tape_tensor(tape, shape(R, F)); /* in Real: its rounding would be e^y's error */
    op_product(tape, result_in(y), operand_of(x), operand_of(projection),
               (Product){ .n = R, .k = D, .m = F, .transpose_b = true, .count = 1 });
    random_features_kernels(out)->forward(out->data, y->data, x->data, (FeatureSizes){ R, F, D });
    tape_scratch_free(tape, y);
    tape_record(tape, (Node){ .name = "op_random_features",
                              .backward = random_features_backward,
                              .inputs = { x, projection },
                              .outputs = { out } });
    return out;
}
