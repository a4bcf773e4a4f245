/* rms_norm of each of R rows of C elements (Zhang and Sennrich 2019), s = 1 / C; l2_normalize is
 * the same with s = 1 and a weight of ones
 *   r = 1 / sqrt(s sum_c x_c^2 + eps)     n_c = x_c r     out_c = n_c weight_c
 * Backward, g = dL/dout, h_c = g_c weight_c = dL/dn_c:
 *   dweight_c <- sum over rows of g_c n_c
 *   dr / dx_j = -r^3 / 2 (2 s x_j) = -s r^2 n_j
 *   dn_c / dx_j = [c = j] r + x_c dr / dx_j = r ([c = j] - s n_c n_j)
 *   dx_j <- sum_c h_c dn_c / dx_j = r (h_j - s n_j sum_c h_c n_c)
 * Saved for the backward pass: r, one value per row. */
#include "ext/rms_norm/rms_norm.h"
#include "ext/rms_norm/kernels.h"

void rms_norm_forward_plain(Real *out, RmsNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(row, R, C) {
        const Real *x = norm.x + row * C, *weight = norm.weight;
        double squares = 0;
        SUM(+, squares)
        for (int64_t c = 0; c < C; c++)
            squares += (double)x[c] * (double)x[c];
        const Real r = inverse_deviation((Real)(squares * (double)norm.s), norm.eps);
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++)
            out[row * C + c] = x[c] * r * weight_or_one(weight, c);
        norm.r[row] = r;
    }
}

static void rms_norm_backward_plain(Gradient dx, Gradient dweight, const Real *dout,
                                    RmsNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(row, dx.data ? R : 0, C) {
        const Real *g = dout + row * C, *x = norm.x + row * C, *weight = norm.weight;
        const Real r = norm.r[row];
        double sum_hn = 0;
        SUM(+, sum_hn)
        for (int64_t c = 0; c < C; c++)
            sum_hn += g[c] * weight_or_one(weight, c) * x[c] * r;
        const Real s_hn = norm.s * (Real)sum_hn;
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++) {
            const Real n = x[c] * r, h = g[c] * weight_or_one(weight, c);
            gradient_add(dx, row * C + c, r * (h - n * s_hn));
        }
    }
    EACH_ROW(c, dweight.data ? C : 0, R) {
        double sum_gn = 0;
        for (int64_t row = 0; row < R; row++)
            sum_gn += dout[row * C + c] * norm.x[row * C + c] * norm.r[row];
        gradient_add(dweight, c, (Real)sum_gn);
    }
}

const RmsNormKernels rms_norm_plain = { rms_norm_forward_plain, rms_norm_backward_plain };

static RmsNormArguments rms_norm_arguments(const Tensor *x, const Tensor *weight, Real s,
                                           double eps, const Tensor *r)
{
    return (RmsNormArguments){ .x = x->data,
                               .weight = weight ? weight->data : NULL,
                               .s = s,
                               .eps = (Real)eps,
                               .r = r->data,
                               .R = shape_rows(x->shape),
                               .C = shape_columns(x->shape) };
}

static void rms_norm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1];
    const Gradient dx = tape_contribution(node, x), dweight = tape_contribution(node, weight);
    const Real s = *(const Real *)node->attributes;
    rms_norm_kernels(x)->backward(dx, dweight, tape_upstream(node, 0),
                                  rms_norm_arguments(x, weight, s, 0, node->saved[0]));
}

static Tensor *rms_norm(Tape *tape, const char *operation, Tensor *x, Tensor *weight, Real s,
                        double eps)
{
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *r = tape_tensor(tape, shape(shape_rows(x->shape)));
    rms_norm_kernels(x)->forward(out->data, rms_norm_arguments(x, weight, s, eps, r));
    tape_record(tape,
                (Node){ operation, rms_norm_backward, .inputs = { x, weight }, .outputs = { out },
                        .saved = { r }, .attributes = tape_save(tape, &s, sizeof s) });
    return out;
}

Tensor *op_rms_norm(Tape *tape, Tensor *x, Tensor *weight, double eps)
{
    tape_use(tape, "op_rms_norm: x", x);
    check_normalization(tape, "op_rms_norm", x, eps);
    const int64_t C = shape_columns(x->shape);
    if (weight) {
        tape_use_real(tape, "op_rms_norm: weight", weight);
        if (!shape_equal(weight->shape, shape(C)))
            tape_error(tape, "op_rms_norm: weight %s, expected %s: x %s", tensor_text(weight).text,
                       shape_text(shape(C)).text, tensor_text(x).text);
    }
    return rms_norm(tape, "op_rms_norm", x, weight, 1 / (Real)C, eps);
}

Tensor *op_l2_normalize(Tape *tape, Tensor *x, double eps)
{
    tape_use(tape, "op_l2_normalize: x", x);
    check_normalization(tape, "op_l2_normalize", x, eps);
    return rms_norm(tape, "op_l2_normalize", x, NULL, 1, eps);
}
