/* Training multiplies many rows at once; a decode step may have one. Its product is then bound by
 * reading the weight, which must be read once and in storage order. For small batches each sum
 * therefore runs along a row of the weight, in all lanes of a vector, for several rows and
 * sequences at a time; the lanes are added at the end.
 *
 * For large batches these final additions, and reading x again for every few rows, dominate. There
 * x is transposed, so that a vector holds one element of several sequences, which is multiplied by
 * one element of the weight at a time.
 *
 * Both ways prefetch the next rows of the weight to L2: rows are too short for the hardware
 * prefetcher, and a core has too few outstanding L1 misses for the memory bandwidth.
 *
 * A weight in bf16 halves the bytes that are read, one in 8 bits quarters them; products are
 * computed in Real. In 8 bits (symmetric, one scale per row)
 *   weight_oi = scale_o q_oi     scale_o = max_i |weight_oi| / 127     q_oi in -127, ..., 127 */
#include <float.h>

#include "nn/cpu/decode/product.h"
#include "ops/cpu/shared/tiles.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

/* out[sequence, row] (+)= sum + bias */
ALWAYS_INLINE void store_sum(const StepProduct *p, int64_t sequence, int64_t row, Real sum)
{
    contribute(TENSOR_REAL, p->out, sequence * p->O + row, p->accumulate,
               sum + (p->linear.bias ? p->linear.bias[row] : 0));
}

/* -------------------------------------------------------------------------------- stored weights
 * T, a WeightType, is a compile-time constant.
 *
 * In 8 bits, each group of 4 LANES elements of a row is stored as LANES words of 32 bits: byte k of
 * word l is element k LANES + l of the group, because vectors have shifts of words everywhere, but
 * not conversions of bytes. Elements after the last whole group are stored in order. */
enum { WORD_BYTES = 4, INT8_GROUP = WORD_BYTES * LANES };
typedef int32_t Words __attribute__((vector_size(INT8_GROUP)));
typedef int32_t StoredWords __attribute__((vector_size(INT8_GROUP), may_alias, aligned(1)));

/* Vectors that are loaded at a time: VECTOR_BYTES of the weight. */
ALWAYS_INLINE int vectors_of(int T)
{
    return T == WEIGHT_INT8 ? WORD_BYTES : T == WEIGHT_BF16 ? 2 : 1;
}

ALWAYS_INLINE const Real *weight_at(int T, const Real *weight, int64_t i)
{
    return T == WEIGHT_INT8 ? (const Real *)((const int8_t *)weight + i)
                            : elements_at(T, weight, i);
}

/* Prefetches element i of row r of the tile of `rows` rows after the next. */
ALWAYS_INLINE void prefetch_weight(int T, const Real *weight, int r, int rows, int64_t n, int64_t i)
{
    __builtin_prefetch(weight_at(T, weight, (r + 2 * rows) * n + i), 0, 2);
}

/* Elements k LANES, ..., k LANES + LANES - 1 from element i on, which starts a group. */
ALWAYS_INLINE Vector weight_vector(int T, const Real *weight, int64_t i, int k)
{
    if (T != WEIGHT_INT8)
        return load_vector(T, weight, i + k * LANES);
    const Words words = *(const StoredWords *)weight_at(T, weight, i);
    return __builtin_convertvector((words << 8 * (WORD_BYTES - 1 - k)) >> 8 * (WORD_BYTES - 1),
                                   Vector);
}

/* Element i of those after the whole groups. */
ALWAYS_INLINE Real weight_element(int T, const Real *weight, int64_t i)
{
    return T == WEIGHT_INT8 ? ((const int8_t *)weight)[i] : load(T, weight, i);
}

static void quantize_row(int8_t *to, Real *scale, const Real *row, int64_t n)
{
    const int64_t whole = n / INT8_GROUP * INT8_GROUP;
    Real max = 0;
    for (int64_t i = 0; i < n; i++) { /* NaN stays */
        const Real size = real_abs(row[i]);
        max = size > max || size != size ? size : max;
    }
    const bool zero = max < 127 * (Real)FLT_MIN; /* or so small that its scale is denormal */
    *scale = zero ? 0 : max < (Real)INFINITY ? max / 127 : (Real)NAN;
    for (int64_t i = 0; i < n; i++) {
        const int64_t in_group = i % INT8_GROUP;
        const int64_t byte = in_group % LANES * WORD_BYTES + in_group / LANES;
        const double q = *scale > 0 ? rint((double)row[i] / (double)*scale) : 0;
        to[i < whole ? i - in_group + byte : i] = (int8_t)q;
    }
}

/* weight_oi = scales_o q_oi with q_oi in -127 to 127, rounded to nearest. A row with NaN or
 * infinity becomes NaN; one whose scale would be denormal becomes 0. */
static void quantize_weight(int8_t *q, Real *scales, const Real *weight, int64_t O, int64_t I)
{
#pragma omp parallel for schedule(static) num_threads(device_threads_for(O *I, 1))
    for (int64_t o = 0; o < O; o++)
        quantize_row(q + o * I, scales + o, weight + o * I, I);
}

/* The weight, or the bf16 copy of its Params, which follows the weight. */
static StepLinear step_linear(const Linear *linear, bool bf16)
{
    Tensor *weight = linear->weight;
    StepLinear step = { .weight = weight->data, .bias = linear->bias->data };
    if (!bf16)
        return step;
    if (!weight->bf16_copy)
        error_raise(
            "nn_transformer_state: bf16 needs weights of a Params, this one %s and belongs to none",
            tensor_text(weight).text);
    step.type = WEIGHT_BF16;
    step.weight = weight->bf16_copy(weight, false);
    if (!step.weight)
        error_raise("nn_transformer_state: memory is exhausted: the bf16 copy of the weights could "
                    "not be allocated");
    return step;
}

void step_weights_cpu(TransformerState *state, bool int8_weights)
{
    const Transformer *transformer = &state->transformer;
    const int64_t width = state->width, inner = state->inner, layers = transformer->layers;
    const int64_t O[] = { 3 * width, width, inner, width }, I[] = { width, width, width, inner };
    const int64_t elements = round_up(layers * width * (4 * width + 2 * inner), 64);
    const int64_t rows = layers * (5 * width + inner);
    const size_t table = (size_t)layers * sizeof(StepLayer);
    StepLinear linears[NN_MAX_LAYERS][4];
    for (int64_t i = 0; i < layers; i++) {
        const TransformerLayer *layer = &transformer->layer[i];
        const Linear *const from[] = { &layer->attention.input, &layer->attention.output,
                                       &layer->ff1, &layer->ff2 };
        for (int j = 0; j < 4; j++)
            linears[i][j] =
                step_linear(from[j], state->precision == PRECISION_BF16 && !int8_weights);
    }
    const size_t bytes =
        table + (int8_weights ? (size_t)elements + (size_t)rows * sizeof(Real) : 0);
    state->weights = device_allocate(state->device, bytes);
    if (!state->weights)
        error_raise("nn_transformer_state: %s", device_exhausted(state->device, bytes).text);
    int8_t *q = (int8_t *)state->weights->data + table;
    Real *scales = (Real *)(void *)(q + elements);
    for (int64_t i = 0; int8_weights && i < layers; i++)
        for (int j = 0; j < 4; q += O[j] * I[j], scales += O[j], j++) {
            StepLinear *linear = &linears[i][j];
            quantize_weight(q, scales, linear->weight, O[j], I[j]);
            *linear = (StepLinear){ (Real *)(void *)q, linear->bias, WEIGHT_INT8, scales };
        }
    memcpy(state->weights->data, linears, table);
}

/* -------------------------------------------------------------------------------- small batches */
enum {
    WEIGHT_TILE_ROWS = 4,
    TILE_SEQUENCES = VECTOR_BYTES == 64 ? 4 : 2, /* a tile's sums fit in registers */
};

/* The dot product of the last columns, from `whole` on. */
ALWAYS_INLINE Real rest(int T, const Real *weight, const Real *x, int64_t whole, int64_t n)
{
    Real sum = 0;
    for (int64_t i = whole; i < n; i++)
        sum = multiply_add_element(weight_element(T, weight, i), x[i], sum);
    return sum;
}

/* A tile of `rows` rows of the weight by `sequences` rows of x, both compile-time constants. */
ALWAYS_INLINE void multiply_weight_rows(int T, int rows, int sequences, const StepProduct *p,
                                        int64_t row, int64_t sequence)
{
    const int vectors = vectors_of(T);
    const int64_t n = p->I, step = vectors * LANES;
    int64_t whole = n / step * step;
    const Real *weight = weight_at(T, p->linear.weight, row * n), *x = p->x + sequence * n;
    Vector sums[WEIGHT_TILE_ROWS][TILE_SEQUENCES] = { { { 0 } } };
    for (int64_t i = 0; i < whole; i += step)
        for (int r = 0; r < rows; r++) {
            prefetch_weight(T, weight, r, rows, n, i);
            for (int k = 0; k < vectors; k++) {
                const Vector w = weight_vector(T, weight, r * n + i, k);
                for (int s = 0; s < sequences; s++)
                    sums[r][s] = multiply_add(w, load_vector(TENSOR_REAL, x, s * n + i + k * LANES),
                                              sums[r][s]);
            }
        }
    if (T == WEIGHT_BF16 && n - whole >= LANES) { /* one vector is left */
        for (int r = 0; r < rows; r++)
            for (int s = 0; s < sequences; s++)
                sums[r][s] = multiply_add(weight_vector(T, weight, r * n + whole, 0),
                                          load_vector(TENSOR_REAL, x, s * n + whole), sums[r][s]);
        whole += LANES;
    }
    for (int r = 0; r < rows; r++)
        for (int s = 0; s < sequences; s++) {
            const Real *weight_r = weight_at(T, weight, r * n);
            const Real sum = vector_sum(sums[r][s]) + rest(T, weight_r, x + s * n, whole, n);
            store_sum(p, sequence + s, row + r,
                      T == WEIGHT_INT8 ? p->linear.scales[row + r] * sum : sum);
        }
}

ALWAYS_INLINE void multiply_sequences(int T, int rows, const StepProduct *p, int64_t row)
{
    int64_t s = 0;
    for (; s + TILE_SEQUENCES <= p->B; s += TILE_SEQUENCES)
        multiply_weight_rows(T, rows, TILE_SEQUENCES, p, row, s);
    for (; s + 2 <= p->B; s += 2)
        multiply_weight_rows(T, rows, 2, p, row, s);
    if (s < p->B)
        multiply_weight_rows(T, rows, 1, p, row, s);
}

ALWAYS_INLINE void product_by_rows(int T, const StepProduct *p, int64_t begin, int64_t end)
{
    int64_t row = begin;
    for (; row + WEIGHT_TILE_ROWS <= end; row += WEIGHT_TILE_ROWS)
        multiply_sequences(T, WEIGHT_TILE_ROWS, p, row);
    for (; row < end; row++)
        multiply_sequences(T, 1, p, row);
}

/* -------------------------------------------------------------------------------- large batches */
enum { SEQUENCE_BLOCK = 32 }; /* sequences per block */

int64_t step_product_buffer(int64_t I)
{
    return (I + ROWS) * SEQUENCE_BLOCK + ROWS * I;
}

/* to [I, columns] = x^T for the sequences from first on, padded with zeros. Copies one cache line
 * per row at a time, because lines at a stride of one row evict each other from the cache. */
static void transpose_x(Real *to, const StepProduct *p, int64_t first, int64_t columns)
{
    for (int64_t i = 0; i < p->I; i += LINE) {
        const int64_t count = minimum(LINE, p->I - i);
        for (int64_t s = 0; s < columns; s++) {
            const bool in_bounds = first + s < p->B;
            const Real *x = p->x + (in_bounds ? first + s : first) * p->I + i;
            for (int64_t j = 0; j < count; j++)
                to[(i + j) * columns + s] = in_bounds ? x[j] : 0;
        }
    }
}

/* ROWS rows of the weight from `row` on in Real: in place, or converted into buffer. */
ALWAYS_INLINE const Real *convert_weight_rows(int T, Real *buffer, const StepProduct *p,
                                              int64_t row)
{
    const int64_t n = p->I, step = vectors_of(T) * LANES, whole = n / step * step;
    if (T == WEIGHT_REAL)
        return p->linear.weight + row * n;
    for (int r = 0; r < ROWS; r++) {
        const Real *from = weight_at(T, p->linear.weight, (row + r) * n);
        const Real scale = T == WEIGHT_INT8 ? p->linear.scales[row + r] : 1;
        Real *to = buffer + r * n;
        for (int64_t i = 0; i < whole; i += step) {
            prefetch_weight(T, from, 0, ROWS, n, i);
            for (int k = 0; k < vectors_of(T); k++)
                store_vector(TENSOR_REAL, to, i + k * LANES, scale * weight_vector(T, from, i, k));
        }
        for (int64_t i = whole; i < n; i++)
            to[i] = scale * weight_element(T, from, i);
    }
    return buffer;
}

/* Rows begin to end, a multiple of ROWS, for the block of sequences from first on. */
ALWAYS_INLINE void multiply_block(int T, const StepProduct *p, Real *buffer, int64_t begin,
                                  int64_t end, int64_t first)
{
    const int64_t sequences = minimum(SEQUENCE_BLOCK, p->B - first),
                  columns = round_up(sequences, LANES);
    const int64_t n = p->I;
    Real *x = buffer, *y = x + n * SEQUENCE_BLOCK; /* [I, columns], [ROWS, columns] = weight x */
    Real *converted = y + ROWS * SEQUENCE_BLOCK;   /* [ROWS, I] */
    transpose_x(x, p, first, columns);
    for (int64_t row = begin; row < end; row += ROWS) {
        const Real *weight = convert_weight_rows(T, converted, p, row);
        tiled_product(false, T == WEIGHT_REAL, y, (MatrixView){ weight, n, 1 },
                      (MatrixView){ x, columns, 1 }, ROWS, n, columns);
        for (int64_t s = 0; s < sequences; s++)
            for (int r = 0; r < ROWS; r++)
                store_sum(p, first + s, row + r, y[r * columns + s]);
    }
}

ALWAYS_INLINE void product_of(int T, const StepProduct *p, Real *buffer, int64_t begin, int64_t end)
{
    const int64_t whole = buffer ? begin + (end - begin) / ROWS * ROWS : begin;
    for (int64_t first = 0; first < p->B && whole > begin; first += SEQUENCE_BLOCK)
        multiply_block(T, p, buffer, begin, whole, first);
    product_by_rows(T, p, whole, end);
}

WHOLE_VECTORS void step_product(const StepProduct *p, Real *buffer, int64_t begin, int64_t end)
{
    if (p->linear.type == WEIGHT_BF16)
        product_of(WEIGHT_BF16, p, buffer, begin, end);
    else if (p->linear.type == WEIGHT_INT8)
        product_of(WEIGHT_INT8, p, buffer, begin, end);
    else
        product_of(WEIGHT_REAL, p, buffer, begin, end);
}
