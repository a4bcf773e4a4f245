/* Positive random features of the exponential (Choromanski et al. 2021, Rethinking Attention with
 * Performers, lemma 1), of rows x [R, D] and a projection w [F, D] whose rows are normal
 *   y_rf = sum_d x_rd w_fd      n_r = |x_r|^2 / 2      out_rf = e^(y_rf - n_r) / sqrt F
 * Since E e^(w.u) = e^(|u|^2 / 2) for a normal w, two rows q and k have
 *   E out(q).out(k) = E e^(w.(q + k)) e^(-|q|^2 / 2 - |k|^2 / 2) = e^(q.k)
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
 *   dx_rd <- sum_f h_rf w_fd - (sum_f h_rf) x_rd      dw_fd <- sum_r h_rf x_rd
 * Saved for the backward pass: out, which is on the tape already. */
#include "ops/attention/features/kernels.h"
#include "ops/shared/internal.h"
#include "ops/products/product.h"

/* out [F], y [F], x [D]; scale = 1 / sqrt F */
ALWAYS_INLINE void forward_row(int T, Real *out, const Real *y, const Real *x, Real scale,
                               int64_t F, int64_t D)
{
    Real n = 0;
#pragma omp simd reduction(+ : n)
    for (int64_t d = 0; d < D; d++)
        n += load(T, x, d) * load(T, x, d) / 2;
#pragma omp simd
    for (int64_t f = 0; f < F; f++)
        store(T, out, f, scale * real_exp(y[f] - n));
}

/* out [R, F], y [R, F], x [R, D] */
void random_features_forward_cpu(TensorType type, Real *out, const Real *y, const Real *x,
                                 int64_t R, int64_t F, int64_t D)
{
    const Real scale = (Real)(1 / sqrt((double)F));
#pragma omp parallel for schedule(static) num_threads(threads_for(R *F, 0.3))
    for (int64_t r = 0; r < R; r++)
        BY_STORAGE(type, T,
                   forward_row(T, elements_at(T, out, r * F), y + r * F, elements_at(T, x, r * D),
                               scale, F, D));
}

/* h [F], dout [F], out [F]; dx [D] or NULL, x [D] */
ALWAYS_INLINE void backward_row(int T, Real *h, Real *dx, bool accumulate, const Real *dout,
                                const Real *out, const Real *x, int64_t F, int64_t D)
{
    Real sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t f = 0; f < F; f++) {
        const Real value = load(T, dout, f) * load(T, out, f);
        store(T, h, f, value);
        sum += value;
    }
    if (!dx)
        return;
#pragma omp simd
    for (int64_t d = 0; d < D; d++)
        contribute(T, dx, d, accumulate, -sum * load(T, x, d));
}

/* h [R, F] = dout [R, F] out [R, F]; dx [R, D] <- -(sum_f h_rf) x [R, D], unless it is NULL */
void random_features_backward_cpu(TensorType type, Real *h, Real *dx, bool accumulate,
                                  const Real *dout, const Real *out, const Real *x, int64_t R,
                                  int64_t F, int64_t D)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(R *F, 0.3))
    for (int64_t r = 0; r < R; r++)
        BY_STORAGE(type, T,
                   backward_row(T, elements_at(T, h, r * F), dx ? elements_at(T, dx, r * D) : NULL,
                                accumulate, elements_at(T, dout, r * F), elements_at(T, out, r * F),
                                elements_at(T, x, r * D), F, D));
}

static void random_features_backward(Node *node)
{
    Tensor *x = node->inputs[0], *w = node->inputs[1], *out = node->outputs[0];
    const int64_t R = shape_rows(x->shape), F = w->shape.size[0], D = w->shape.size[1];
    Gradient dx = tape_contribution(node, x), dw = tape_contribution(node, w);
    Tensor *h = tape_tensor_of(node->tape, out->type, shape(R, F));
    KERNEL_CALL(
        out, random_features_backward,
        (h->data, dx.data, dx.accumulate, tape_upstream(node, 0), out->data, x->data, R, F, D));
    dx.accumulate = true;
    if (dx.data) /* [R, D] = h [R, F] w [F, D] */
        product(node->tape, node->name, result_for(dx, x), operand_of(h), operand_of(w),
                (Product){ .n = R, .k = F, .m = D, .count = 1 });
    if (dw.data) /* [F, D] = h^T [F, R] x [R, D] */
        product(node->tape, node->name, result_for(dw, w), operand_of(h), operand_of(x),
                (Product){ .n = F, .k = R, .m = D, .transpose_a = true, .count = 1 });
    tape_scratch_free(node->tape, h);
}

static void check(Tape *tape, Tensor *x, Tensor *projection)
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
    check(tape, x, projection);
    const TensorType type = product_type(tape);
    x = op_cast(tape, x, type);
    projection = op_cast(tape, projection, type);
    const int64_t R = shape_rows(x->shape), F = projection->shape.size[0];
    const int64_t D = projection->shape.size[1];
    Shape out_shape = x->shape;
    out_shape.size[out_shape.rank - 1] = F;
    Tensor *out = tape_tensor_of(tape, type, out_shape);
    Tensor *y = tape_scratch(tape, shape(R, F)); /* in Real: its rounding would be e^y's error */
    product(tape, "op_random_features", result_in(y), operand_of(x), operand_of(projection),
            (Product){ .n = R, .k = D, .m = F, .transpose_b = true, .count = 1 });
    KERNEL_CALL(out, random_features_forward, (out->data, y->data, x->data, R, F, D));
    tape_scratch_free(tape, y);
    tape_record(tape, (Node){ .name = "op_random_features",
                              .backward = random_features_backward,
                              .inputs = { x, projection },
                              .outputs = { out } });
    return out;
}
