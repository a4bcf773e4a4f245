/* layernorm over the last axis, of C elements, for each of R rows (Ba, Kiros, Hinton 2016)
 *   mean = sum_c x_c / C     variance = sum_c (x_c - mean)^2 / C     r = 1 / sqrt(variance + eps)
 *   n_c = (x_c - mean) r     out_c = n_c weight_c + bias_c
 * Backward, g = dL/dout, h_c = g_c weight_c = dL/dn_c:
 *   dweight_c <- sum over rows of g_c n_c          dbias_c <- sum over rows of g_c
 *   dn_c / dx_j = r ([c = j] - 1 / C - n_c n_j / C), because dmean / dx_j = 1 / C and
 *   dvariance / dx_j = 2 (x_j - mean) / C, so that dr / dx_j = -r^3 (x_j - mean) / C = -r^2 n_j / C;
 *   dx_j <- r (h_j - sum_c h_c / C - n_j sum_c h_c n_c / C)
 * Kept: mean and r, two numbers a row. */
#include "ops/columns.h"
#include "ops/internal.h"

typedef struct LayernormKept {
    Real mean, r;
} LayernormKept;

static LayernormKept layernorm_row(Real *out, const Real *x, const Real *weight, const Real *bias,
                                   Real eps, int64_t C)
{
    Real sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < C; c++)
        sum += x[c];
    Real mean = sum / (Real)C;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < C; c++)
        squares += (x[c] - mean) * (x[c] - mean);
    Real r = 1 / (Real)sqrt((double)(squares / (Real)C + eps));
#pragma omp simd
    for (int64_t c = 0; c < C; c++)
        out[c] = (x[c] - mean) * r * weight[c] + bias[c];
    return (LayernormKept){ mean, r };
}

/* out [R, C], kept [R, 2], x [R, C], weight [C], bias [C] */
static void layernorm_forward_cpu(Real *out, Real *kept, const Real *x, const Real *weight,
                                  const Real *bias, Real eps, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t row = 0; row < R; row++) {
        LayernormKept k = layernorm_row(out + row * C, x + row * C, weight, bias, eps, C);
        kept[2 * row] = k.mean;
        kept[2 * row + 1] = k.r;
    }
}

/* dweight [C] and dbias [C] += one row's contributions. */
static void add_weight_row(Real *dweight, Real *dbias, const Real *dout, const Real *x,
                           LayernormKept k, int64_t C)
{
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        dweight[c] += dout[c] * (x[c] - k.mean) * k.r;
        dbias[c] += dout[c];
    }
}

static void input_row(Real *dx, bool accumulate, const Real *dout, const Real *x,
                      const Real *weight, LayernormKept k, int64_t C)
{
    Real sum_h = 0, sum_hn = 0;
#pragma omp simd reduction(+ : sum_h, sum_hn)
    for (int64_t c = 0; c < C; c++) {
        Real h = dout[c] * weight[c];
        sum_h += h;
        sum_hn += h * (x[c] - k.mean) * k.r;
    }
    Real mean_h = sum_h / (Real)C, mean_hn = sum_hn / (Real)C;
#pragma omp simd
    for (int64_t c = 0; c < C; c++) {
        Real n = (x[c] - k.mean) * k.r;
        contribute(&dx[c], accumulate, k.r * (dout[c] * weight[c] - mean_h - n * mean_hn));
    }
}

/* dx [R, C] or NULL; dweight, dbias [row_blocks(R), C], of each block of rows, or both NULL */
static void layernorm_backward_cpu(Real *dx, bool accumulate, Real *dweight, Real *dbias,
                                   const Real *dout, const Real *x, const Real *weight,
                                   const Real *kept, int64_t R, int64_t C)
{
#pragma omp parallel for schedule(static) if (R * C >= PARALLEL_MINIMUM)
    for (int64_t i = 0; i < row_blocks(R); i++) {
        if (dweight) {
            memset(dweight + i * C, 0, (size_t)C * sizeof *dweight);
            memset(dbias + i * C, 0, (size_t)C * sizeof *dbias);
        }
        for (int64_t row = row_block_start(i, R); row < row_block_start(i + 1, R); row++) {
            LayernormKept k = { kept[2 * row], kept[2 * row + 1] };
            if (dweight)
                add_weight_row(dweight + i * C, dbias + i * C, dout + row * C, x + row * C, k, C);
            if (dx)
                input_row(dx + row * C, accumulate, dout + row * C, x + row * C, weight, k, C);
        }
    }
}

static bool wants_gradient(const Tensor *tensor)
{
    return tensor_root(tensor)->requires_gradient;
}

static void layernorm_backward(Node *node)
{
    Tensor *x = node->inputs[0], *weight = node->inputs[1], *bias = node->inputs[2];
    Device *device = x->device;
    int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    Tensor *partial[2] = { NULL, NULL }; /* of dweight and dbias, a row for each block of rows */
    if (wants_gradient(weight) || wants_gradient(bias))
        for (int i = 0; i < 2; i++)
            partial[i] = tape_scratch(node->tape, shape(row_blocks(R), C));

    Gradient dx = tape_contribution(node, x);
    DEVICE_CALL(x, layernorm_backward,
                (dx.data, dx.accumulate, partial[0] ? partial[0]->data : NULL,
                 partial[1] ? partial[1]->data : NULL, tape_upstream(node, 0), x->data,
                 weight->data, node->kept[0]->data, R, C));
    for (int i = 0; i < 2; i++) {
        Gradient gradient = tape_contribution(node, i == 0 ? weight : bias);
        if (gradient.data)
            sum_row_blocks(device, gradient, partial[i]->data, R, C);
        tape_scratch_free(node->tape, partial[i]);
    }
}

static void check_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Real eps)
{
    tape_use(tape, "op_layernorm: x", x);
    tape_use_real(tape, "op_layernorm: weight", weight);
    tape_use_real(tape, "op_layernorm: bias", bias);
    if (x->shape.rank < 1)
        tape_error(tape, "op_layernorm: x is a scalar, expected one axis at least");
    Shape expected = shape(shape_columns(x->shape));
    if (!shape_equal(weight->shape, expected) || !shape_equal(bias->shape, expected))
        tape_error(tape, "op_layernorm: weight is %s, bias is %s, expected %s: x is %s",
                   shape_text(weight->shape).text, shape_text(bias->shape).text,
                   shape_text(expected).text, shape_text(x->shape).text);
    if (!(eps > 0))
        tape_error(tape, "op_layernorm: eps is %g, expected more than 0", (double)eps);
}

Tensor *op_layernorm(Tape *tape, Tensor *x, Tensor *weight, Tensor *bias, Real eps)
{
    check_layernorm(tape, x, weight, bias, eps);
    int64_t R = shape_rows(x->shape), C = shape_columns(x->shape);
    Tensor *out = tape_tensor_of(tape, x->type, x->shape);
    Tensor *kept = tape_tensor(tape, shape(R, 2));
    DEVICE_CALL(out, layernorm_forward,
                (out->data, kept->data, x->data, weight->data, bias->data, eps, R, C));
    tape_record(tape, (Node){ .name = "op_layernorm",
                              .backward = layernorm_backward,
                              .inputs = { x, weight, bias },
                              .outputs = { out },
                              .kept = { kept } });
    return out;
}
