/* Random shapes and options of every operation against plain loops in double.
 *
 *     oracle [COUNT [SEED]]     DEVICE=cuda: on that device
 *
 * A row here gives an operation of tests/operations.h or tests/operation_table.h shapes of random
 * sizes, and the loops that compute its result. Gradients are compared with differences of the
 * loops' results, at up to 8 elements per input. Linear attention, with random options, is compared
 * with tests/attention_oracle.c. Prints the largest error per operation, relative to the largest
 * magnitude, 0.1 or more, of the result or of all gradients together. */
#include "tests/operations.h"

#include "tests/attention_oracle.h"

#include <stdio.h>

/* Tensor cores compute float32 as three bf16 products: up to 2e-5. */
#ifdef TAPEGRAD_DOUBLE
#define TOLERANCE 1e-7 /* of the differences */
#else
#define TOLERANCE 5e-5
#endif

#define LEAST_SCALE 0.1

/* Random sizes, five per case: B and H up to 3; N, M and K up to 40. */
enum { SIZES = 5, FEW = 3, MOST = 40, MOST_OPERATION_ELEMENTS = 6000 };

typedef struct Array {
    Shape shape;
    int64_t count;
    double *v;
    const int32_t *integers;
    const double *mask; /* of x[0]'s shape: what dropout multiplies its elements by */
} Array;

typedef void Loops(const Array *x, Array *out);

/* ---------------------------------------------------------------------- the loops: products */

/* out [.., n, m] = sum over K terms; steps: of a and b per row or column, and per term */
static void product(const Array *a, const Array *b, Array *out, int64_t K, int64_t a_row,
                    int64_t a_term, int64_t b_column, int64_t b_term)
{
    const int64_t n = shape_size(out->shape, -2), m = shape_columns(out->shape);
    for (int64_t i = 0; i < out->count; i++) {
        const int64_t batch = i / (n * m);
        const double *row = a->v + batch * n * K + i / m % n * a_row;
        const double *column = b->v + (b->shape.rank > 2 ? batch * m * K : 0) + i % m * b_column;
        out->v[i] = 0;
        for (int64_t k = 0; k < K; k++)
            out->v[i] += row[k * a_term] * column[k * b_term];
    }
}

static void matmul(const Array *x, Array *out)
{
    const int64_t K = shape_columns(x[0].shape);
    product(&x[0], &x[1], out, K, K, 1, 1, shape_columns(x[1].shape));
}

static void matmul_tn(const Array *x, Array *out)
{
    product(&x[0], &x[1], out, shape_size(x[0].shape, -2), 1, shape_columns(x[0].shape), 1,
            shape_columns(x[1].shape));
}

static void matmul_nt(const Array *x, Array *out)
{
    const int64_t K = shape_columns(x[0].shape);
    product(&x[0], &x[1], out, K, K, 1, K, 1);
}

static void linear(const Array *x, Array *out)
{
    matmul_nt(x, out);
    for (int64_t i = 0; i < out->count && x[2].v; i++)
        out->v[i] += x[2].v[i % x[2].count];
}

#define LINEAR_ACTIVATION(name)                                                                    \
    static void linear_##name(const Array *x, Array *out)                                          \
    {                                                                                              \
        linear(x, out);                                                                            \
        for (int64_t i = 0; i < out->count; i++)                                                   \
            out->v[i] = exact_##name(out->v[i]);                                                   \
    }
LINEAR_ACTIVATION(relu)
LINEAR_ACTIVATION(gelu)
LINEAR_ACTIVATION(gelu_tanh)

/* ------------------------------------------------------------------- elementwise, by a position */

/* The offset in x, broadcast to the shape, of its element i. */
static int64_t broadcast_offset(const Array *x, Shape to, int64_t i)
{
    int64_t offset = 0, step = 1;
    for (int axis = to.rank - 1, own = x->shape.rank - 1; own >= 0; axis--, own--) {
        offset += x->shape.size[own] == 1 ? 0 : i % to.size[axis] * step;
        step *= x->shape.size[own];
        i /= to.size[axis];
    }
    return offset;
}

#define EACH(name, expression)                                                                     \
    static void name(const Array *x, Array *out)                                                   \
    {                                                                                              \
        for (int64_t i = 0; i < out->count; i++)                                                   \
            out->v[i] = (expression);                                                              \
    }
EACH(add_row, x[0].v[i] + x[1].v[i % x[1].count])
EACH(dropout, x[0].v[i] * x[0].mask[i])
EACH(used_twice, exp(x[0].v[i]) * tanh(x[0].v[i]))
EACH(reshape, exp(x[0].v[i]))
EACH(broadcast_to, x[0].v[broadcast_offset(&x[0], out->shape, i)])

/* ----------------------------------------------------------------------------------------- rows */

static void log_softmax(const Array *x, Array *out)
{
    const int64_t C = shape_columns(out->shape);
    for (int64_t i = 0; i < out->count; i++) {
        double sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += exp(x[0].v[i / C * C + c] - x[0].v[i]);
        out->v[i] = -log(sum);
    }
}

static void softmax(const Array *x, Array *out)
{
    log_softmax(x, out);
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = exp(out->v[i]);
}

static void normalize(const double *x, const Array *weight, const Array *bias, double *out,
                      int64_t count)
{
    const int64_t C = weight->count;
    for (int64_t first = 0; first < count; first += C) {
        double mean = 0, variance = 0;
        for (int64_t c = 0; c < C; c++)
            mean += x[first + c] / (double)C;
        for (int64_t c = 0; c < C; c++)
            variance += (x[first + c] - mean) * (x[first + c] - mean) / (double)C;
        for (int64_t c = 0; c < C; c++)
            out[first + c] =
                (x[first + c] - mean) / sqrt(variance + 1e-3) * weight->v[c] + bias->v[c];
    }
}

static void layernorm(const Array *x, Array *out)
{
    normalize(x[0].v, &x[1], &x[2], out->v, out->count);
}

static void residual_layernorm(const Array *x, Array *out)
{
    double *sum = malloc((size_t)out->count * sizeof *sum);
    for (int64_t i = 0; i < out->count; i++)
        sum[i] = x[0].v[i] + x[1].v[i] * x[0].mask[i];
    normalize(sum, &x[2], &x[3], out->v, out->count);
    free(sum);
}

static void residual_undropped(const Array *x, Array *out)
{
    double *sum = malloc((size_t)out->count * sizeof *sum);
    for (int64_t i = 0; i < out->count; i++)
        sum[i] = x[0].v[i] + x[1].v[i];
    normalize(sum, &x[2], &x[2], out->v, out->count);
    free(sum);
}

/* Element i of n along the axis that lies before `inner` elements of each of its own: the offset
 * in x of the first of the n. */
static int64_t first_of(int64_t i, int64_t n, int64_t inner)
{
    return i / inner * n * inner + i % inner;
}

static int64_t inner_of(Shape shape, int axis)
{
    int64_t inner = 1;
    for (axis++; axis < shape.rank; axis++)
        inner *= shape.size[axis];
    return inner;
}

#define REDUCED(name, AXIS, start, step, end)                                                      \
    static void name(const Array *x, Array *out)                                                   \
    {                                                                                              \
        const bool all = (AXIS) == ALL_AXES;                                                       \
        const int axis = all ? 0 : (AXIS) < 0 ? (AXIS) + x[0].shape.rank : (AXIS);                 \
        const int64_t n = all ? x[0].count : x[0].shape.size[axis];                                \
        const int64_t inner = all ? 1 : inner_of(x[0].shape, axis);                                \
        for (int64_t i = 0; i < out->count; i++) {                                                 \
            double sum = (start);                                                                  \
            for (int64_t j = 0; j < n; j++) {                                                      \
                const double value = x[0].v[first_of(i, n, inner) + j * inner];                    \
                sum = (step);                                                                      \
            }                                                                                      \
            out->v[i] = (end);                                                                     \
        }                                                                                          \
    }
REDUCED(sum, ALL_AXES, 0, sum + value, sum)
REDUCED(sum_rows, -1, 0, sum + value, sum)
REDUCED(sum_first, 0, 0, sum + value, sum)
REDUCED(sum_middle, 1, 0, sum + value, sum)
REDUCED(mean, ALL_AXES, 0, sum + value, sum / (double)n)
REDUCED(mean_rows, -1, 0, sum + value, sum / (double)n)
REDUCED(mean_middle, -2, 0, sum + value, sum / (double)n)
REDUCED(max, ALL_AXES, -INFINITY, fmax(sum, value), sum)
REDUCED(max_rows, -1, -INFINITY, fmax(sum, value), sum)
REDUCED(max_middle, 1, -INFINITY, fmax(sum, value), sum)

static void cumulative(const Array *x, Array *out, int axis, bool reverse)
{
    const int64_t n = x[0].shape.size[axis], inner = inner_of(x[0].shape, axis);
    for (int64_t i = 0; i < out->count; i++) {
        const int64_t at = i / inner % n;
        out->v[i] = 0;
        for (int64_t j = reverse ? at : 0; j < (reverse ? n : at + 1); j++)
            out->v[i] += x[0].v[i + (j - at) * inner];
    }
}

static void cumulative_sum(const Array *x, Array *out)
{
    cumulative(x, out, 1, false);
}

static void reverse_cumulative_sum(const Array *x, Array *out)
{
    cumulative(x, out, x[0].shape.rank - 1, true);
}

/* --------------------------------------------------------------------------------------- losses */

static void mean_squared_error(const Array *x, Array *out)
{
    *out->v = 0;
    for (int64_t i = 0; i < x[0].count; i++)
        *out->v += pow(x[0].v[i] - x[1].v[i], 2) / (double)x[0].count;
}

static void cross_entropy(const Array *x, Array *out)
{
    const int64_t C = shape_columns(x[0].shape);
    double total = 0, weights = 0;
    for (int64_t r = 0; r < x[1].count; r++) {
        const double weight = x[2].v ? x[2].v[r] : 1, *row = x[0].v + r * C;
        double sum = 0;
        for (int64_t c = 0; c < C; c++)
            sum += exp(row[c] - row[x[1].integers[r]]);
        total += weight * log(sum);
        weights += weight;
    }
    *out->v = total / weights;
}

static double logistic(double x)
{
    return 1 / (1 + exp(-x));
}

static void discretized_logistic_mixture(const Array *x, Array *out)
{
    const int64_t K = shape_columns(x[0].shape) / 3;
    *out->v = 0;
    for (int64_t pixel = 0; pixel < x[1].count; pixel++) {
        const double *logits = x[0].v + pixel * 3 * K, *means = logits + K, *scales = means + K;
        const int32_t t = x[1].integers[pixel];
        double sum = 0, all = 0;
        for (int64_t k = 0; k < K; k++) {
            const double s = exp(-fmax(scales[k], -7)), z = s * (2 * t / 255.0 - 1 - means[k]);
            const double above = t == 255 ? 1 : logistic(z + s / 255);
            const double below = t == 0 ? 0 : logistic(z - s / 255);
            const double density = s * logistic(z) * logistic(-z) * 2 / 255;
            const bool inside = t > 0 && t < 255 && above - below <= 1e-5;
            sum += exp(logits[k]) * (inside ? density : above - below);
            all += exp(logits[k]);
        }
        *out->v -= log(sum / all) / (double)x[1].count;
    }
}

/* --------------------------------------------------------------------------------------- layout */

static void embedding(const Array *x, Array *out)
{
    const int64_t D = shape_columns(x[0].shape);
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = x[0].v[x[1].integers[i / D] * D + i % D];
}

static void gather(const Array *x, Array *out)
{
    const int64_t K = shape_columns(out->shape), C = shape_columns(x[0].shape);
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = x[0].v[i / K * C + x[1].integers[i]];
}

static void transposed(const Array *x, Array *out, int a, int b)
{
    for (int64_t i = 0; i < out->count; i++) {
        int64_t at[MAX_RANK], rest = i, from = 0;
        for (int axis = out->shape.rank - 1; axis >= 0; rest /= out->shape.size[axis--])
            at[axis] = rest % out->shape.size[axis];
        for (int axis = 0; axis < out->shape.rank; axis++)
            from = from * x[0].shape.size[axis] + at[axis == a ? b : axis == b ? a : axis];
        out->v[i] = x[0].v[from];
    }
}

static void transpose(const Array *x, Array *out)
{
    transposed(x, out, 0, 1);
}
static void transpose_middle(const Array *x, Array *out)
{
    transposed(x, out, 1, 2);
}
static void transpose_far(const Array *x, Array *out)
{
    transposed(x, out, 0, 3);
}

/* Parts joined along an axis that each has n_p rows of `inner` elements of. */
static void joined(const Array *const *parts, int count, Array *out, int axis, int64_t inner)
{
    int64_t total = 0, before = 0;
    for (int p = 0; p < count; p++)
        total += axis < 0 ? 1 : parts[p]->shape.size[axis];
    for (int p = 0; p < count; p++) {
        const int64_t n = axis < 0 ? 1 : parts[p]->shape.size[axis];
        for (int64_t i = 0; i < parts[p]->count; i++)
            out->v[i / (n * inner) * total * inner + before * inner + i % (n * inner)] =
                parts[p]->v[i];
        before += n;
    }
}

static void concat(const Array *x, Array *out)
{
    joined((const Array *[]){ &x[0], &x[1] }, 2, out, 2, 1);
}
static void concat_middle(const Array *x, Array *out)
{
    joined((const Array *[]){ &x[0], &x[1], &x[0] }, 3, out, 1, x[0].shape.size[2]);
}
static void stack(const Array *x, Array *out)
{
    joined((const Array *[]){ &x[0], &x[1], &x[0] }, 3, out, -1,
           x[0].shape.size[1] * x[0].shape.size[2]);
}

static void windows(const Array *x, Array *out, Window w)
{
    const int64_t *size = x[0].shape.size, *to = out->shape.size;
    for (int64_t i = 0; i < out->count; i++) {
        const int64_t c = i % size[3], element = i / size[3] % (w.height * w.width);
        const int64_t place = i / to[3], b = place / to[2] / to[1];
        const int64_t row = place / to[2] % to[1] * w.stride + element / w.width - w.padding;
        const int64_t column = place % to[2] * w.stride + element % w.width - w.padding;
        const bool inside = row >= 0 && row < size[1] && column >= 0 && column < size[2];
        out->v[i] = inside ? x[0].v[((b * size[1] + row) * size[2] + column) * size[3] + c] : 0;
    }
}

static void unfold(const Array *x, Array *out)
{
    windows(x, out, (Window){ 3, 2, 2, 1 });
}
static void unfold_inside(const Array *x, Array *out)
{
    windows(x, out, (Window){ 2, 3, 1, 0 });
}
static void unfold_3_by_3(const Array *x, Array *out)
{
    windows(x, out, (Window){ 3, 3, 1, 1 });
}

static void slice(const Array *x, Array *out)
{
    const int64_t n = x[0].shape.size[1], inner = x[0].shape.size[2];
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = x[0].v[i / (3 * inner) * n * inner + 2 * inner + i % (3 * inner)];
}

static void slice_half(const Array *x, Array *out)
{
    const int64_t C = x[0].shape.size[1], half = C / 2;
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = x[0].v[i / half * C + i % half];
}

static void split(const Array *x, Array *out)
{
    const int64_t n = shape_columns(out->shape);
    for (int64_t i = 0; i < out->count; i++)
        out->v[i] = x[0].v[i / n * 3 * n + i % n] * x[0].v[i / n * 3 * n + 2 * n + i % n];
}

/* --------------------------------------------------------------------- features and attention */

/* The pairs in the library's order: those d apart, cyclically, one d after another. */
static void polynomial_features(const Array *x, Array *out)
{
    const int64_t D = shape_columns(x[0].shape), F = shape_columns(out->shape);
    for (int64_t i = 0; i < out->count; i++) {
        const double *row = x[0].v + i / F * D;
        const int64_t f = i % F - 1, d = (f - D) / D, first = (f - D) % D;
        out->v[i] = f < 0    ? 1
                    : f < D  ? sqrt(2) * row[f]
                    : d == 0 ? row[first] * row[first]
                             : sqrt(2) * row[first] * row[(first + d) % D];
    }
}

static void random_features(const Array *x, Array *out)
{
    const int64_t D = shape_columns(x[0].shape), F = shape_columns(out->shape);
    for (int64_t i = 0; i < out->count; i++) {
        const double *row = x[0].v + i / F * D, *w = x[1].v + i % F * D;
        double exponent = 0;
        for (int64_t d = 0; d < D; d++)
            exponent += w[d] * row[d] / 4 - row[d] * row[d] / 32;
        out->v[i] = exp(exponent) / sqrt((double)F);
    }
}

/* Rows of a tensor [B, N, heads, columns]: head h of position n of sequence b. */
static const double *head(const Array *x, int64_t b, int64_t n, int64_t h)
{
    const int64_t *size = x->shape.size;
    return x->v + ((b * size[1] + n) * size[2] + h) * size[3];
}

static void softmax_heads(const Array *q, const Array *k, const Array *v, Array *out,
                          int64_t key_head, int64_t value_head, bool causal)
{
    const int64_t *size = out->shape.size, D = q->shape.size[3], M = size[3];
    for (int64_t row = 0; row < out->count / M; row++) {
        const int64_t h = row % size[2], n = row / size[2] % size[1], b = row / size[2] / size[1];
        double sum = 0, *to = out->v + row * M;
        memset(to, 0, (size_t)M * sizeof *to);
        for (int64_t j = 0; j < (causal ? n + 1 : k->shape.size[1]); j++) {
            double score = 0;
            for (int64_t d = 0; d < D; d++)
                score += head(q, b, n, h)[d] * head(k, b, j, key_head + h)[d];
            const double weight = exp(score / sqrt((double)D));
            sum += weight;
            for (int64_t m = 0; m < M; m++)
                to[m] += weight * head(v, b, j, value_head + h)[m];
        }
        for (int64_t m = 0; m < M; m++)
            to[m] /= sum;
    }
}

static void softmax_attention(const Array *x, Array *out)
{
    softmax_heads(&x[0], &x[1], &x[2], out, 0, 0, false);
}
static void causal_softmax_attention(const Array *x, Array *out)
{
    softmax_heads(&x[0], &x[1], &x[2], out, 0, 0, true);
}
static void packed_softmax_attention(const Array *x, Array *out)
{
    const int64_t H = out->shape.size[2];
    softmax_heads(&x[0], &x[0], &x[0], out, H, 2 * H, true);
}

/* ---------------------------------------------------------------------------------- recurrent */

/* Gate g of unit j before its function: the part of x W_ih^T + b_ih, or that of h W_hh^T + b_hh. */
static double gate(const Array *weight, const double *bias, int64_t H, int64_t g, int64_t j,
                   const double *in)
{
    const int64_t n = shape_columns(weight->shape);
    double sum = bias[g * H + j];
    for (int64_t i = 0; i < n; i++)
        sum += weight->v[(g * H + j) * n + i] * 0.5 / sqrt((double)n) * in[i];
    return sum;
}

static void lstm_step(const Array *x, const double *in, const double *before, double *h, double *c)
{
    const int64_t H = shape_columns(x[2].shape);
    for (int64_t j = 0; j < H; j++) {
        double a[4];
        for (int64_t g = 0; g < 4; g++)
            a[g] = gate(&x[1], x[3].v, H, g, j, in) + gate(&x[2], x[3].v + 4 * H, H, g, j, before);
        c[j] = logistic(a[1]) * c[j] + logistic(a[0]) * tanh(a[2]);
        h[j] = logistic(a[3]) * tanh(c[j]);
    }
}

static void gru_step(const Array *x, const double *in, const double *before, double *h, double *c)
{
    const int64_t H = shape_columns(x[2].shape);
    (void)c;
    for (int64_t j = 0; j < H; j++) {
        double a[3], u[3];
        for (int64_t g = 0; g < 3; g++) {
            a[g] = gate(&x[1], x[3].v, H, g, j, in);
            u[g] = gate(&x[2], x[3].v + 3 * H, H, g, j, before);
        }
        const double z = logistic(a[1] + u[1]);
        h[j] = (1 - z) * tanh(a[2] + logistic(a[0] + u[0]) * u[2]) + z * before[j];
    }
}

/* x[3] as in lstm_layer and gru_layer; out is [B, N, H], or its elements and then the final h and,
 * for an LSTM, c. */
static void layer(const Array *x, Array *out, bool lstm, bool lengths, bool reverse)
{
    const int64_t B = x[0].shape.size[0], N = x[0].shape.size[1], I = x[0].shape.size[2];
    const int64_t H = shape_columns(x[2].shape), biases = lstm ? 8 : 6;
    const double *initial = x[3].shape.size[0] > biases ? x[3].v + biases * H : NULL;
    const bool final = out->count > B * N * H;
    memset(out->v, 0, (size_t)out->count * sizeof *out->v);
    for (int64_t b = 0; b < B; b++) {
        const int64_t length = !lengths ? N : b == 0 ? (N + 7) / 8 : N - N / 20;
        double h[MOST] = { 0 }, c[MOST] = { 0 }, before[MOST];
        for (int64_t j = 0; j < H && initial; j++) {
            h[j] = initial[b * H + j];
            c[j] = lstm ? initial[(B + b) * H + j] : 0;
        }
        for (int64_t step = 0; step < length; step++) {
            const int64_t row = b * N + (reverse ? length - 1 - step : step);
            memcpy(before, h, sizeof h);
            (lstm ? lstm_step : gru_step)(x, x[0].v + row * I, before, h, c);
            memcpy(out->v + row * H, h, (size_t)H * sizeof *h);
        }
        for (int64_t j = 0; j < H && final; j++) {
            out->v[(B * N + b) * H + j] = h[j];
            if (lstm)
                out->v[(B * N + B + b) * H + j] = c[j];
        }
    }
}

#define LAYER(name, lstm, lengths, reverse)                                                        \
    static void name(const Array *x, Array *out)                                                   \
    {                                                                                              \
        layer(x, out, lstm, lengths, reverse);                                                     \
    }
LAYER(lstm, true, false, false)
LAYER(lstm_lengths, true, true, false)
LAYER(lstm_reverse, true, true, true)
LAYER(gru, false, false, false)
LAYER(gru_lengths, false, true, false)
LAYER(gru_reverse, false, true, true)

/* ------------------------------------------------------------------------------- the rows
 * LSH attention depends on random hashes:
 * test_lsh_attention compares it with loops. */
#define B_ n[0]
#define H_ n[1]
#define N_ n[2]
#define M_ n[3]
#define K_ n[4]
#define ONE_OR(size, by) ((by) % 2 ? (size) : 1)
/* clang-format off */
#define ROWS_OF_ORACLE(ROW)                                                                        \
    ROW(matmul, { S(B_, N_, K_), S(B_, K_, M_) }) ROW(matmul_tn, { S(B_, K_, N_), S(K_, M_) })     \
    ROW(matmul_nt, { S(B_, N_, K_), S(B_, M_, K_) })                                               \
    ROW(linear, { S(B_, N_, K_), P(M_, K_), P(M_) }) ROW(linear_alone, { S(N_, K_), P(M_, K_) })   \
    ROW(linear_relu, { S(N_, K_), P(M_, K_), P(M_) })                                              \
    ROW(linear_gelu, { S(N_, K_), P(M_, K_), P(M_) })                                              \
    ROW(linear_gelu_tanh, { S(B_, N_, K_), P(M_, K_), P(M_) })                                     \
    ROW(add_row, { S(B_, N_, M_), S(M_) }) ROW(dropout, { S(B_, N_, M_) })                         \
    ROW(used_twice, { S(N_, M_) }) ROW(softmax, { S(B_, N_, M_) })                                 \
    ROW(log_softmax, { S(N_, M_ * K_) }) ROW(layernorm, { S(B_, N_, M_), P(M_), P(M_) })           \
    ROW(residual_layernorm, { S(N_, M_ + 1), S(N_, M_ + 1), P(M_ + 1), P(M_ + 1) })                \
    ROW(residual_undropped, { S(N_, M_ + 1), S(N_, M_ + 1), P(M_ + 1) })                           \
    ROW(sum, { S(B_, N_, M_) }) ROW(sum_rows, { S(B_, N_, M_) }) ROW(sum_first, { S(N_, M_) })     \
    ROW(sum_middle, { S(B_, N_, H_, M_) }) ROW(mean, { S(N_, M_) })                                \
    ROW(mean_rows, { S(B_, N_, M_) }) ROW(mean_middle, { S(B_, N_, M_) })                          \
    ROW(max, { S(N_, M_) }) ROW(max_rows, { S(B_, N_, M_) }) ROW(max_middle, { S(B_, N_, M_) })    \
    ROW(cumulative_sum, { S(B_, N_, M_) }) ROW(reverse_cumulative_sum, { S(B_, N_, M_) })          \
    ROW(mean_squared_error, { S(N_, M_), S(N_, M_) })                                              \
    ROW(cross_entropy, { S(B_, N_, M_), INTEGERS((int32_t)M_, B_, N_) })                           \
    ROW(weighted_cross_entropy, { S(N_ + 1, M_), INTEGERS((int32_t)M_, N_ + 1), WEIGHTS(N_ + 1) }) \
    ROW(discretized_logistic_mixture, { S(N_, 3 * M_), INTEGERS(256, N_) })                        \
    ROW(embedding, { P(M_, K_), INTEGERS((int32_t)M_, B_, N_) }) ROW(reshape, { S(3, 2, 5) })      \
    ROW(transpose, { S(N_, M_, H_) }) ROW(transpose_middle, { S(B_, N_, M_, H_) })                 \
    ROW(transpose_far, { S(N_, B_, H_, M_) })                                                      \
    ROW(broadcast_to, { S(ONE_OR(4, B_), ONE_OR(7, N_), ONE_OR(5, H_), ONE_OR(16, M_)) })          \
    ROW(concat, { S(B_, N_, M_), S(B_, N_, K_) })                                                  \
    ROW(concat_middle, { S(B_, N_, M_), S(B_, K_, M_) })                                           \
    ROW(stack, { S(B_, N_, M_), S(B_, N_, M_) })                                                   \
    ROW(gather, { S(B_, N_, M_), INTEGERS((int32_t)M_, B_, N_, K_) })                              \
    ROW(unfold, { S(B_, N_, M_, H_) }) ROW(unfold_inside, { S(B_, N_ + 1, M_ + 2, H_) })           \
    ROW(unfold_3_by_3, { S(B_, N_, M_, H_) }) ROW(slice, { S(B_, N_ + 4, M_) })                    \
    ROW(slice_half, { S(N_, M_ + 1) }) ROW(split, { S(N_, 3 * M_) })                               \
    ROW(polynomial_features, { S(N_, M_) }) ROW(random_features, { S(B_, N_, K_), S(M_, K_) })     \
    ROW(softmax_attention, { S(B_, N_, H_, M_), S(B_, K_, H_, M_), S(B_, K_, H_, N_) })            \
    ROW(causal_softmax_attention, { QKV(B_, N_, H_, M_, K_) })                                     \
    ROW(packed_softmax_attention, { S(B_, N_, 3 * H_, M_) })                                       \
    ROW(lstm, { RECURRENT(B_ * H_, N_, K_, 4, M_, 8 + K_ % 2 * 2 * B_ * H_) })                     \
    ROW(lstm_from_state, { RECURRENT(B_ * H_, N_, K_, 4, M_, 8 + 2 * B_ * H_) })                   \
    ROW(lstm_lengths, { RECURRENT(2, N_, K_, 4, M_, 8 + K_ % 2 * 4) })                             \
    ROW(lstm_reverse, { RECURRENT(2, N_, K_, 4, M_, 8 + K_ % 2 * 4) })                             \
    ROW(gru, { RECURRENT(B_ * H_, N_, K_, 3, M_, 6 + K_ % 2 * B_ * H_) })                          \
    ROW(gru_from_state, { RECURRENT(B_ * H_, N_, K_, 3, M_, 6 + B_ * H_) })                        \
    ROW(gru_lengths, { RECURRENT(2, N_, K_, 3, M_, 6 + K_ % 2 * 2) })                              \
    ROW(gru_reverse, { RECURRENT(2, N_, K_, 3, M_, 6 + K_ % 2 * 2) })
/* clang-format on */
#define linear_alone linear
#define weighted_cross_entropy cross_entropy
#define lstm_from_state lstm
#define gru_from_state gru

typedef struct Row {
    const char *name;
    Loops *loops;
    void (*draw)(const int64_t *n, Input *inputs);
} Row;
#define DEFINE_DRAW(name, ...)                                                                     \
    static void draw_##name(const int64_t *n, Input *inputs)                                       \
    {                                                                                              \
        const Input drawn[MOST_INPUTS] = __VA_ARGS__;                                              \
        (void)n;                                                                                   \
        memcpy(inputs, drawn, sizeof drawn);                                                       \
    }
#define ENTER_DRAW(name, ...) { #name, name, draw_##name },
ROWS_OF_ORACLE(DEFINE_DRAW)
static const Row rows[] = { ROWS_OF_ORACLE(ENTER_DRAW) };

static void draw_unary(const int64_t *n, Input *inputs)
{
    const Input drawn = S(N_, M_ * K_);
    inputs[0] = drawn;
}

/* Any axis of either input may be broadcast. */
static void draw_binary(const int64_t *n, Input *inputs)
{
    const Input drawn[] = { S(ONE_OR(B_, N_ / 2), N_, ONE_OR(M_, K_)),
                            S(B_, ONE_OR(N_, M_ / 2), ONE_OR(M_, K_ / 2)) };
    memcpy(inputs, drawn, sizeof drawn);
}

/* ------------------------------------------------------------------------------- the comparison */

typedef struct Errors {
    int cases;
    double result, gradients;
} Errors;

/* One operation: of a row, or of the table of unary or of binary functions. */
typedef struct Subject {
    const char *name;
    const Row *row;
    Tensor *(*apply)(Tape *tape, Tensor **x);
    const Unary *unary;
    const Binary *binary;
} Subject;

static Random generator;

static int64_t draw_between(int64_t least, int64_t most)
{
    return random_integer(&generator, least, most + 1);
}

static void draw(const Subject *subject, Input *inputs)
{
    int64_t elements;
    do {
        int64_t n[SIZES];
        for (int i = 0; i < SIZES; i++) /* small sizes as often as large ones */
            n[i] = i < 2 ? draw_between(1, FEW) : draw_between(1, draw_between(1, MOST));
        memset(inputs, 0, MOST_INPUTS * sizeof *inputs);
        (subject->row ? subject->row->draw : subject->unary ? draw_unary : draw_binary)(n, inputs);
        elements = 0;
        for (int i = 0; i < MOST_INPUTS; i++)
            elements += inputs[i].shape.rank ? shape_count(inputs[i].shape) : 0;
    } while (elements > MOST_OPERATION_ELEMENTS);
}

static Tensor *input_tensor(const Input *input, bool positive, Array *x)
{
    x->shape = input->shape;
    x->count = shape_count(x->shape);
    x->v = malloc((size_t)x->count * sizeof *x->v);
    Real *values = test_zeros(x->count);
    int32_t *integers = (int32_t *)test_zeros(x->count);
    x->integers = integers;
    random_normal(&generator, values, input->below || input->weights ? 0 : x->count);
    for (int64_t i = 0; i < x->count; i++) {
        if (input->below)
            integers[i] = (int32_t)draw_between(0, input->below - 1);
        if (input->weights)
            values[i] = (Real)((i + 1) % 3);
        if (positive)
            values[i] = (Real)exp((double)values[i]);
        x->v[i] = (double)values[i];
    }
    return input->below     ? tape_input_i32(tape, integers, x->shape)
           : input->weights ? tape_input(tape, values, x->shape)
                            : tape_variable(tape, values, x->shape);
}

/* What dropout multiplies elements of this shape by: its result for ones, from the same seed. */
static const double *dropout_mask(Shape shape)
{
    const int64_t count = shape_count(shape);
    Real *ones = test_zeros(count);
    for (int64_t i = 0; i < count; i++)
        ones[i] = 1;
    tape_seed(tape, 9);
    const Real *kept = test_values(op_dropout(tape, tape_input(tape, ones, shape), 0.3));
    double *mask = malloc((size_t)count * sizeof *mask);
    for (int64_t i = 0; i < count; i++)
        mask[i] = kept[i] > 0 ? 1 / 0.7 : 0;
    tape_reset(tape);
    return mask;
}

static void run_loops(const Subject *subject, const Array *x, Array *out)
{
    if (subject->row) {
        subject->row->loops(x, out);
        return;
    }
    for (int64_t i = 0; i < out->count; i++) {
        const double a = x[0].v[broadcast_offset(&x[0], out->shape, i)];
        out->v[i] = subject->unary
                        ? subject->unary->exact(a)
                        : subject->binary->exact(a, x[1].v[broadcast_offset(&x[1], out->shape, i)]);
    }
}

/* sum_i r_i (out_i - first_i) of the loops with element i of an input moved by h */
static double moved(const Subject *subject, const Array *x, Array *out, const double *first,
                    const Real *r, double *element, double h)
{
    const double kept = *element;
    double sum = 0;
    *element += h;
    run_loops(subject, x, out);
    for (int64_t i = 0; i < out->count; i++)
        sum += (double)r[i] * (out->v[i] - first[i]);
    *element = kept;
    return sum;
}

/* The derivative by an element, from four differences; NaN near a kink: elsewhere halving h divides
 * the second difference by 4. */
static double derivative(const Subject *subject, const Array *x, Array *out, const double *first,
                         const Real *r, double *element)
{
    const double h = 2e-4;
    double quotients[2], sides[2];
    for (int i = 0; i < 2; i++) {
        const double up = moved(subject, x, out, first, r, element, h / (1 + i));
        const double down = moved(subject, x, out, first, r, element, -h / (1 + i));
        quotients[i] = (up - down) / (2 * h / (1 + i));
        sides[i] = (up + down) / h;
    }
    const double scale = fabs(quotients[0]) + fabs(quotients[1]) + 1e-3;
    if (fabs(quotients[0] - quotients[1]) > 1e-3 * scale ||
        fabs(sides[0] / 4 - sides[1]) > TOLERANCE * scale)
        return NAN;
    return (4 * quotients[1] - quotients[0]) / 3;
}

static void note_error(double *worst, double error)
{
    if (!(error <= *worst)) /* keeps NaN */
        *worst = error;
}

enum { CHECKED_ELEMENTS = 8 };

static void compare_gradients(const Subject *subject, Array *x, Tensor *const *inputs,
                              const Array *exact, const Real *r, Errors *errors)
{
    Array out = *exact;
    out.v = malloc((size_t)out.count * sizeof *out.v);
    double largest = LEAST_SCALE, worst = 0;
    for (int i = 0; i < MOST_INPUTS; i++) {
        if (!inputs[i] || !inputs[i]->requires_grad)
            continue;
        const Real *gradient = test_values(tensor_gradient(inputs[i]));
        for (int64_t j = 0; j < x[i].count; j++)
            largest = fmax(largest, fabs((double)gradient[j]));
        for (int checked = 0; checked < CHECKED_ELEMENTS; checked++) {
            const int64_t j = draw_between(0, x[i].count - 1);
            const double expected = derivative(subject, x, &out, exact->v, r, &x[i].v[j]);
            if (!isnan(expected) || isnan(gradient[j]))
                note_error(&worst, fabs((double)gradient[j] - expected));
        }
    }
    note_error(&errors->gradients, worst / largest);
    free(out.v);
}

static Tensor *apply(const Subject *subject, Tensor **x)
{
    return subject->row     ? subject->apply(tape, x)
           : subject->unary ? subject->unary->operation(tape, x[0])
                            : subject->binary->operation(tape, x[0], x[1]);
}

static void compare_case(const Subject *subject, Errors *errors)
{
    Input drawn[MOST_INPUTS];
    Array x[MOST_INPUTS] = { { .v = NULL } };
    Tensor *inputs[MOST_INPUTS] = { NULL }, *arguments[MOST_INPUTS];
    draw(subject, drawn);
    x[0].mask = dropout_mask(drawn[0].shape);
    for (int i = 0; i < MOST_INPUTS; i++)
        if (drawn[i].shape.rank)
            inputs[i] =
                input_tensor(&drawn[i],
                             (subject->unary && subject->unary->domain == POSITIVE) ||
                                 (subject->binary && i == 1 && subject->binary->domain == POSITIVE),
                             &x[i]);
    memcpy(arguments, inputs, sizeof inputs);
    tape_seed(tape, 9);
    Tensor *result = tensor_keep(apply(subject, arguments));
    Array out = { .shape = result->shape, .count = tensor_count(result) };
    out.v = malloc((size_t)out.count * sizeof *out.v);
    run_loops(subject, x, &out);
    const Real *found = test_values(result);
    double largest = LEAST_SCALE, worst = 0;
    for (int64_t i = 0; i < out.count; i++) {
        largest = fmax(largest, fabs(out.v[i]));
        note_error(&worst, fabs((double)found[i] - out.v[i]));
    }
    note_error(&errors->result, worst / largest);
    Real *r = test_zeros(out.count);
    random_normal(&generator, r, out.count);
    tape_backward_from(tape, result, tape_input(tape, r, result->shape));
    compare_gradients(subject, x, inputs, &out, r, errors);
    for (int i = 0; i < MOST_INPUTS; i++)
        free(x[i].v);
    free((void *)x[0].mask);
    free(out.v);
}

/* ----------------------------------------------------------------------------- linear attention */

static void compare_attention(bool causal, Errors *errors)
{
    static int32_t offsets[4];
    Case c = { .B = draw_between(1, 3),
               .N = draw_between(1, 150),
               .H = draw_between(1, 3),
               .D = draw_between(1, 70),
               .M = draw_between(1, 70),
               .causal = causal,
               .features = (FeatureMap)draw_between(0, 3),
               .eps = 0.5 };
    c.keys = causal ? c.N : draw_between(1, 150);
    c.lengths = draw_between(0, 2) == 0;
    if (causal) {
        c.form = (AttentionForm)draw_between(0, 4);
        c.chunk = draw_between(0, 1) ? 0 : draw_between(1, 64);
        c.state = draw_between(0, 1);
        c.used = (Used)draw_between(0, 3);
        if (!c.lengths && draw_between(0, 2) == 0) {
            c.B = 1;
            c.sequences = 3;
            c.offsets = offsets;
            offsets[1] = (int32_t)draw_between(0, c.N);
            offsets[2] = (int32_t)draw_between(offsets[1], c.N);
            offsets[3] = (int32_t)c.N;
        }
    }
    Values actual = inputs(&c), expected = actual;
    compute(&c, &actual);
    oracle(&c, &expected);
    const Real *found[] = { actual.out,  actual.final_state, actual.dquery,
                            actual.dkey, actual.dvalue,      actual.dstate };
    const Real *exact[] = { expected.out,  expected.final_state, expected.dquery,
                            expected.dkey, expected.dvalue,      expected.dstate };
    const int64_t counts[] = { outs_of(&c),    c.used == OUT ? 0 : states_of(&c),
                               queries_of(&c), keys_of(&c),
                               values_of(&c),  c.state ? states_of(&c) : 0 };
    double largest = LEAST_SCALE;
    for (int i = 2; i < 6; i++)
        for (int64_t j = 0; j < counts[i]; j++)
            largest = fmax(largest, fabs((double)exact[i][j]));
    for (int i = 0; i < 6; i++) {
        double scale = i < 2 ? LEAST_SCALE : largest, worst = 0;
        for (int64_t j = 0; j < counts[i]; j++) {
            scale = i < 2 ? fmax(scale, fabs((double)exact[i][j])) : scale;
            note_error(&worst, fabs((double)found[i][j] - (double)exact[i][j]));
        }
        note_error(i < 2 ? &errors->result : &errors->gradients, worst / scale);
    }
    release(&expected);
}

/* ------------------------------------------------------------------------------------ the table */

static int failures;

static void compare(const Subject *subject, int count)
{
    Errors errors = { 0 };
    tape = tape_new(test_device());
    for (; errors.cases < count; errors.cases++) {
        if (subject->row || subject->unary || subject->binary)
            compare_case(subject, &errors);
        else
            compare_attention(subject->name[0] == 'c', &errors);
        tape_reset(tape);
        test_forget();
    }
    tape_free(tape);
    const bool good = errors.result <= TOLERANCE && errors.gradients <= TOLERANCE;
    failures += !good;
    printf("%-32s %6d %10.1e %10.1e%s\n", subject->name, errors.cases, errors.result,
           errors.gradients, good ? "" : "  too large");
    fflush(stdout);
}

static const Operation *operation_of(const char *name)
{
    for (int i = 0; i < OPERATION_COUNT; i++)
        if (strcmp(operations[i].name, name) == 0)
            return &operations[i];
    fprintf(stderr, "oracle: tests/operations.h has no row %s\n", name);
    exit(2);
}

/* Forms of linear attention, which is compared below; LSH attention and CTC, which their own tests
 * compare with loops; a benchmark. */
static const char *const without_loops[] = {
    "causal_linear_attention",
    "packed_causal_linear_attention",
    "linear_attention",
    "packed_linear_attention",
    "masked_attention",
    "causal_lsh_attention",
    "lsh_attention",
    "packed_lsh_attention",
    "recurrent",
    "chunked",
    "chunk_parallel",
    "quadratic",
    "best_relu",
    "best_softplus",
    "recurrent_softplus",
    "quadratic_relu",
    "offsets_recurrent",
    "offsets_chunked",
    "offsets_chunk_parallel",
    "offsets_quadratic",
    "lengths_recurrent",
    "lengths_chunked",
    "lengths_chunk_parallel",
    "lengths_quadratic",
    "broadcast_rows",
    "ctc",
    "ctc_long",
    "ctc_speech",
};

static void check_that_all_have_loops(void)
{
    for (int i = 0; i < OPERATION_COUNT; i++) {
        bool found = false;
        for (size_t j = 0; j < sizeof rows / sizeof *rows; j++)
            found |= strcmp(rows[j].name, operations[i].name) == 0;
        for (size_t j = 0; j < sizeof without_loops / sizeof *without_loops; j++)
            found |= strcmp(without_loops[j], operations[i].name) == 0;
        if (!found) {
            fprintf(stderr, "oracle: %s of tests/operations.h has no loops\n", operations[i].name);
            exit(2);
        }
    }
}

int main(int argc, char **argv)
{
    check_that_all_have_loops();
    const int count = argc > 1 ? atoi(argv[1]) : 500;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    printf("%s, %zu bytes per element, seed %llu, tolerance %.0e\n", device_name(test_device()),
           sizeof(Real), (unsigned long long)seed, TOLERANCE);
    printf("%-32s %6s %10s %10s\n", "operation", "cases", "result", "gradients");
    generator = random_new(seed, random_stream("oracle"));
    for (int i = 0; i < UNARIES; i++)
        compare(&(Subject){ .name = unaries[i].name, .unary = &unaries[i] }, count);
    for (int i = 0; i < BINARIES; i++)
        compare(&(Subject){ .name = binaries[i].name, .binary = &binaries[i] }, count);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        compare(&(Subject){ rows[i].name, &rows[i], operation_of(rows[i].name)->apply, NULL, NULL },
                count);
    compare(&(Subject){ .name = "causal_linear_attention" }, count);
    compare(&(Subject){ .name = "linear_attention" }, count);
    return failures > 0;
}
