/* batchnorm of each of C channels, columns of R rows (Ioffe and Szegedy 2015, algorithm 1)
 *   mean = sum_i x_i / R     variance = sum_i (x_i - mean)^2 / R     r = 1 / sqrt(variance + eps)
 *   n_i = (x_i - mean) r     out_i = n_i weight + bias
 * and for later, m the momentum, with the unbiased variance:
 *   running_mean     <- (1 - m) running_mean + m mean
 *   running_variance <- (1 - m) running_variance + m variance R / (R - 1)
 * Backward, g = dL/dout, with the derivation of layernorm.c for columns, where h_i = g_i weight:
 *   dweight <- sum_i g_i n_i          dbias <- sum_i g_i
 *   dx_i <- weight r (g_i - sum_j g_j / R - n_i sum_j g_j n_j / R)
 * When training is off, mean and variance are the running ones: constants, so dx_i <- weight r g_i.
 * Saved for the backward pass: mean and r, two values per channel. */
#include "ext/images/kernels.h"

static void batchnorm_forward_plain(Real *out, BatchNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(c, C, R) {
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < R && norm.training; i++)
            mean += norm.x[i * C + c] / (double)R;
        for (int64_t i = 0; i < R && norm.training; i++)
            squares += (norm.x[i * C + c] - mean) * (norm.x[i * C + c] - mean);
        batchnorm_statistics(&norm, c, mean, squares);
        for (int64_t i = 0; i < R; i++)
            out[i * C + c] =
                (norm.x[i * C + c] - norm.mean[c]) * norm.r[c] * norm.weight[c] + norm.bias[c];
    }
}

static void batchnorm_backward_plain(Gradient dx, Gradient dweight, Gradient dbias,
                                     const Real *dout, BatchNormArguments norm)
{
    const int64_t R = norm.R, C = norm.C;
    EACH_ROW(c, C, R) {
        double sum_g = 0, sum_gn = 0;
        for (int64_t i = 0; i < R; i++) {
            sum_g += dout[i * C + c];
            sum_gn += dout[i * C + c] * (norm.x[i * C + c] - norm.mean[c]) * norm.r[c];
        }
        if (dweight.data)
            gradient_add(dweight, c, (Real)sum_gn);
        if (dbias.data)
            gradient_add(dbias, c, (Real)sum_g);
        const double share = norm.training ? 1 / (double)R : 0;
        const Real g_bar = (Real)(sum_g * share), gn_bar = (Real)(sum_gn * share);
        for (int64_t i = 0; i < R && dx.data; i++) {
            const Real n = (norm.x[i * C + c] - norm.mean[c]) * norm.r[c];
            gradient_add(dx, i * C + c,
                         norm.weight[c] * norm.r[c] * (dout[i * C + c] - g_bar - n * gn_bar));
        }
    }
}

const BatchNormKernels batchnorm_plain = { batchnorm_forward_plain, batchnorm_backward_plain };

static void batchnorm_check(Tape *tape, Tensor *x, Tensor *const *channels, double momentum,
                            double eps)
{
    static const char *const labels[] = { "op_batchnorm: weight", "op_batchnorm: bias",
                                          "op_batchnorm: running_mean",
                                          "op_batchnorm: running_variance" };
    tape_use(tape, "op_batchnorm: x", x);
    check_normalization(tape, "op_batchnorm", x, eps);
    const Shape expected = shape(shape_columns(x->shape));
    for (int i = 0; i < 4; i++) {
        tape_use_real(tape, labels[i], channels[i]);
        if (!shape_equal(channels[i]->shape, expected))
            tape_error(tape, "%s %s, expected %s: x %s", labels[i], tensor_text(channels[i]).text,
                       shape_text(expected).text, tensor_text(x).text);
    }
    if (tape_is_training(tape) && shape_rows(x->shape) < 2)
        tape_error(tape,
                   "op_batchnorm: x %s, one value per channel, expected 2 or more in training",
                   tensor_text(x).text);
    if (!(momentum >= 0 && momentum <= 1))
        tape_error(tape, "op_batchnorm: momentum is %g, expected 0 to 1", momentum);
}

static void batchnorm_backward(Node *node)
{
    Tensor *x = node->inputs[0];
    const Gradient dweight = tape_contribution(node, node->inputs[1]); /* in the kernels' order: */
    const Gradient dbias = tape_contribution(node, node->inputs[2]);   /* all may be one tensor */
    const Gradient dx = tape_contribution(node, x);
    image_kernels(x)->batchnorm->backward(dx, dweight, dbias, tape_upstream(node, 0),
                                          *(const BatchNormArguments *)node->attributes);
}

Tensor *op_batchnorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Tensor *running_mean,
                     Tensor *running_variance, double momentum, double eps)
{
    batchnorm_check(tape, x, (Tensor *[]){ weight, bias, running_mean, running_variance }, momentum,
                    eps);
    const int64_t C = shape_columns(x->shape);
    const bool training = tape_is_training(tape);
    const bool updates = training && tape_will_overwrite(tape, running_mean) &&
                         tape_will_overwrite(tape, running_variance);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *statistics = tape_tensor(tape, shape(2, C));
    const BatchNormArguments norm = { .x = x->data,
                                      .weight = weight->data,
                                      .bias = bias->data,
                                      .mean = statistics->data,
                                      .r = statistics->data + C,
                                      .running_mean = running_mean->data,
                                      .running_variance = running_variance->data,
                                      .momentum = updates ? momentum : 0,
                                      .eps = (Real)eps,
                                      .training = training,
                                      .R = shape_rows(x->shape),
                                      .C = C };
    image_kernels(x)->batchnorm->forward(out->data, norm);
    tape_record(tape, (Node){ "op_batchnorm", batchnorm_backward, .inputs = { x, weight, bias },
                              .outputs = { out }, .saved = { statistics },
                              .attributes = tape_save(tape, &norm, sizeof norm) });
    return out;
}
