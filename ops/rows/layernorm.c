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
 * Saved for the backward pass: mean and r, two values per row (`statistics`). For a missing weight
 * the kernels get ones, for a missing bias zeros. */
#include "ops/kernels.h"
#include "ops/shared/rows.h"

void layernorm_forward_plain(Real *out, NormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(row, R, C) {
        const Real *x = norm.x + row * C;
        double mean = 0, variance = 0;
        SUM(+, mean)
        for (int64_t c = 0; c < C; c++)
            mean += x[c];
        mean /= (double)C;
        SUM(+, variance)
        for (int64_t c = 0; c < C; c++)
            variance += (x[c] - mean) * (x[c] - mean);
        const Real m = (Real)mean, r = inverse_deviation((Real)(variance / (double)C), norm.eps);
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++)
            out[row * C + c] = (x[c] - m) * r * norm.weight[c] + norm.bias[c];
        norm.statistics[row] = (Statistics){ m, r };
    }
}

void layernorm_backward_plain(Gradient dx, Gradient dweight, Gradient dbias, const Real *dout,
                              NormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(row, dx.data ? R : 0, C) {
        const Real *g = dout + row * C, *x = norm.x + row * C, *weight = norm.weight;
        const Real mean = norm.statistics[row].mean, r = norm.statistics[row].r;
        double sum_h = 0, sum_hn = 0;
        PRAGMA(omp simd reduction(+ : sum_h, sum_hn))
        for (int64_t c = 0; c < C; c++) {
            const Real n = (x[c] - mean) * r, h = g[c] * weight[c];
            sum_h += h;
            sum_hn += h * n;
        }
        const Real h_bar = (Real)(sum_h / (double)C), hn_bar = (Real)(sum_hn / (double)C);
        PRAGMA(omp simd)
        for (int64_t c = 0; c < C; c++) {
            const Real n = (x[c] - mean) * r, h = g[c] * weight[c];
            gradient_add(dx, row * C + c, r * (h - h_bar - n * hn_bar));
        }
    }
    EACH_ROW(c, dweight.data || dbias.data ? C : 0, R) {
        double sum_gn = 0, sum_g = 0;
        for (int64_t row = 0; row < R; row++) {
            const Statistics s = norm.statistics[row];
            const Real g = dout[row * C + c], n = (norm.x[row * C + c] - s.mean) * s.r;
            sum_gn += g * n;
            sum_g += g;
        }
        if (dweight.data)
            gradient_add(dweight, c, (Real)sum_gn);
        if (dbias.data)
            gradient_add(dbias, c, (Real)sum_g);
    }
}

Tensor *layernorm_constant(Tape *tape, const Tensor *x, Real value)
{
    Tensor *constant = tape_tensor(tape, shape(shape_columns(x->shape)));
    tensor_fill(constant, value);
    return constant;
}

void layernorm_check(Tape *tape, const char *operation, const Tensor *x, const Tensor *weight,
                     const Tensor *bias, double eps)
{
    check_normalization(tape, operation, x, eps);
    Shape expected = shape(shape_columns(x->shape));
    if (!shape_equal(weight->shape, expected) || !shape_equal(bias->shape, expected))
        tape_error(tape, "%s: weight %s, bias %s, expected %s: x %s", operation,
                   tensor_text(weight).text, tensor_text(bias).text, shape_text(expected).text,
                   tensor_text(x).text);
}

NormArguments layernorm_arguments(const Tensor *x, const Tensor *weight, const Tensor *bias,
                                  const Tensor *statistics, double eps)
{
    return (NormArguments){ .x = x->data,
                            .weight = weight->data,
                            .bias = bias ? bias->data : NULL,
                            .eps = (Real)eps,
                            .statistics = (Statistics *)statistics->data,
                            .R = shape_rows(x->shape),
                            .C = shape_columns(x->shape) };
}

static void layernorm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    const Gradient dx = tape_contribution(node, x), dweight = tape_contribution(node, weight);
    const Gradient dbias = tape_contribution(node, bias);
    const Tensor *factor = weight ? weight : node->saved[1];
    kernels_of(x)->layernorm_backward(dx, dweight, dbias, tape_upstream(node, 0),
                                      layernorm_arguments(x, factor, NULL, node->saved[0], 0));
}

Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, double eps)
{
    tape_use(tape, "op_layernorm: x", x);
    Tensor *factor = weight ? weight : layernorm_constant(tape, x, 1);
    Tensor *shift = bias ? bias : layernorm_constant(tape, x, 0);
    tape_use_real(tape, "op_layernorm: weight", factor);
    tape_use_real(tape, "op_layernorm: bias", shift);
    layernorm_check(tape, "op_layernorm", x, factor, shift, eps);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *statistics = tape_tensor(tape, shape(shape_rows(x->shape), 2));
    kernels_of(x)->layernorm_forward(out->data,
                                     layernorm_arguments(x, factor, shift, statistics, eps));
    tape_record(tape,
                (Node){ "op_layernorm", layernorm_backward, .inputs = { x, weight, bias },
                        .outputs = { out }, .saved = { statistics, weight ? NULL : factor } });
    return out;
}
