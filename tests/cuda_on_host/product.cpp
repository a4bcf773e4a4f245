#include "product.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

/* Blocked summation: sums of TERMS terms are added up, which rounds less than one long sum. */
enum { TERMS = 256, COLUMNS = 6 };

enum { RELU = 2, BIAS = 4, RELU_GRADIENT = 8, BIAS_GRADIENT = 16, GELU = 32, GELU_GRADIENT = 64 };
enum { AUXILIARY = 128, BIAS_GRADIENT_A = 256, BIAS_GRADIENT_B = 512 };

/* ------------------------------------------------------------------------------------- elements */
static size_t element_size(cudaDataType_t type)
{
    return type == CUDA_R_64F ? 8 : type == CUDA_R_16BF ? 2 : 4;
}

template <typename Number> static Number load(const void *data, cudaDataType_t type, int64_t i)
{
    if (type == CUDA_R_64F)
        return (Number)((const double *)data)[i];
    if (type == CUDA_R_32F)
        return (Number)((const float *)data)[i];
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return (Number)value;
}

static uint16_t bf16_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = value != value ? 0x7fffffffu : bits + 0x7fffu + (bits >> 16 & 1);
    return (uint16_t)(bits >> 16);
}

template <typename Number>
static void store(const void *data, cudaDataType_t type, int64_t i, Number value)
{
    if (type == CUDA_R_64F)
        ((double *)data)[i] = (double)value;
    else if (type == CUDA_R_32F)
        ((float *)data)[i] = (float)value;
    else
        ((uint16_t *)data)[i] = bf16_of((float)value);
}

/* Rounds to nearest: tf32 has 10 of the 23 mantissa bits of a float. */
static float tf32_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (isfinite(value))
        bits = (bits + 0x1000u) & ~0x1fffu;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static double tf32_of(double value)
{
    return value;
}

/* ---------------------------------------------------------------------------------------- products
 * op(a) is packed into panels of ROWS rows, the lanes of a vector, op(b) into panels of COLUMNS
 * columns. The last panels are padded with zeros. */
template <typename Number> struct Row {
    typedef Number Vector __attribute__((vector_size(64)));
    enum { ROWS = 64 / sizeof(Number) };
};

/* Packs op(matrix) into panels [k][width], whose lanes are its rows or its columns. */
template <typename Number>
static void pack(Number *panels, const Matrix &matrix, int64_t product, bool lanes_are_rows,
                 bool tf32, int64_t lanes, int64_t k, int64_t width)
{
    const bool by_rows = matrix.transposed != lanes_are_rows;
    const int64_t lane_step = by_rows ? 1 : matrix.ld, k_step = by_rows ? matrix.ld : 1;
    const int64_t base = product * matrix.step;
    for (int64_t first = 0; first < lanes; first += width)
        for (int64_t l = 0; l < k; l++)
            for (int64_t lane = first; lane < first + width; lane++) {
                Number value = 0;
                if (lane < lanes)
                    value = load<Number>(matrix.data, matrix.type,
                                         base + lane * lane_step + l * k_step);
                *panels++ = tf32 ? tf32_of(value) : value;
            }
}

/* sums[COLUMNS][ROWS] = a panel of op(a) times one of op(b). The panels are the emulation's own, so
 * the sanitizers need not check them. */
template <typename Number>
UNSANITIZED static void multiply_panels(Number *sums, const Number *a, const Number *b, int64_t k)
{
    typedef typename Row<Number>::Vector Vector;
    Vector total[COLUMNS] = {};
    for (int64_t first = 0; first < k; first += TERMS) {
        const int64_t end = first + TERMS < k ? first + TERMS : k;
        Vector part[COLUMNS] = {};
        for (int64_t l = first; l < end; l++) {
            const Vector row = *(const Vector *)(a + l * Row<Number>::ROWS);
            for (int j = 0; j < COLUMNS; j++)
                part[j] += row * b[l * COLUMNS + j];
        }
        for (int j = 0; j < COLUMNS; j++)
            total[j] += part[j];
    }
    for (int j = 0; j < COLUMNS; j++)
        *(Vector *)(sums + j * Row<Number>::ROWS) = total[j];
}

template <typename Number> static Number *allocate(int64_t count)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)(count + 1) * sizeof(Number)) != 0)
        emulation_abort("no memory for a product's operands");
    return (Number *)memory;
}

static int64_t rounded_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

template <typename Number> struct Panels {
    Number *a, *b, *sums;
};

/* out[n][m] = op(a) op(b) */
template <typename Number>
static void multiply(Number *out, const Product &p, int64_t product, Panels<Number> panels)
{
    enum { ROWS = Row<Number>::ROWS };
    const bool tf32 = p.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    pack(panels.a, p.a, product, true, tf32, p.m, p.k, ROWS);
    pack(panels.b, p.b, product, false, tf32, p.n, p.k, COLUMNS);
    for (int64_t i = 0; i < p.m; i += ROWS)
        for (int64_t j = 0; j < p.n; j += COLUMNS) {
            const int64_t rows = p.m - i < ROWS ? p.m - i : ROWS;
            const int64_t columns = p.n - j < COLUMNS ? p.n - j : COLUMNS;
            multiply_panels(panels.sums, panels.a + i * p.k, panels.b + j * p.k, p.k);
            for (int64_t column = 0; column < columns; column++)
                memcpy(out + (j + column) * p.m + i, panels.sums + column * ROWS,
                       (size_t)rows * sizeof *out);
        }
}

/* ------------------------------------------------------------------------------------ epilogues */
/* gelu, tanh approximation: y = x (1 + tanh u) / 2, u = s (x + 0.044715 x^3), s = sqrt(2 / pi). */
static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

static double gelu_gradient(double x)
{
    const double t = tanh(0.7978845608028654 * (x + 0.044715 * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.7978845608028654 * (1 + 3 * 0.044715 * x * x);
}

/* The auxiliary matrix of relu is column-major, with one bit per element. */
static void store_bit(const Matrix &bits, int64_t i, bool value)
{
    uint8_t *byte = (uint8_t *)bits.data + i / 8;
    *byte = (uint8_t)((*byte & ~(1u << i % 8)) | (unsigned)value << i % 8);
}

static bool load_bit(const Matrix &bits, int64_t i)
{
    return ((const uint8_t *)bits.data)[i / 8] >> i % 8 & 1;
}

template <typename Number>
static Number finish(const Product &p, Number x, int64_t row, int64_t column, int64_t product)
{
    const Matrix &aux = p.auxiliary;
    const int64_t at = product * aux.step + column * aux.ld + row;
    if (p.epilogue & BIAS)
        x += load<Number>(p.bias.data, p.bias.type, product * p.bias.step + row);
    if (p.epilogue & RELU) {
        if (p.epilogue & AUXILIARY)
            store_bit(aux, at, x > 0);
        x = x > 0 || x != x ? x : 0;
    }
    if (p.epilogue & GELU) {
        if (p.epilogue & AUXILIARY)
            store(aux.data, aux.type, at, x);
        x = (Number)gelu((double)x);
    }
    if (p.epilogue & RELU_GRADIENT)
        x = load_bit(aux, at) ? x : 0;
    if (p.epilogue & GELU_GRADIENT)
        x *= (Number)gelu_gradient(load<double>(aux.data, aux.type, at));
    return x;
}

/* Sums of d's rows, of op(a)'s rows or of op(b)'s columns. */
template <typename Number>
static void store_bias_gradient(const Product &p, const Number *out, int64_t product)
{
    const bool of_b = p.epilogue & BIAS_GRADIENT_B, of_d = p.epilogue & BIAS_GRADIENT;
    const Matrix &matrix = of_b ? p.b : p.a;
    const bool by_rows = matrix.transposed == of_b;
    for (int64_t i = 0; i < (of_b ? p.n : p.m); i++) {
        Number sum = 0;
        for (int64_t j = 0; of_d && j < p.n; j++)
            sum += out[j * p.m + i];
        for (int64_t l = 0; !of_d && l < p.k; l++)
            sum += load<Number>(matrix.data, matrix.type,
                                product * matrix.step +
                                    (by_rows ? i + l * matrix.ld : l + i * matrix.ld));
        store(p.bias.data, p.bias.type, product * p.bias.step + i, sum);
    }
}

template <typename Number> static void finish_all(Number *out, const Product &p, int64_t product)
{
    for (int64_t j = 0; j < p.n; j++)
        for (int64_t i = 0; i < p.m; i++) {
            Number x = (Number)p.alpha * out[j * p.m + i];
            if (p.beta != 0)
                x += (Number)p.beta *
                     load<Number>(p.c.data, p.c.type, product * p.c.step + j * p.c.ld + i);
            out[j * p.m + i] = finish(p, x, i, j, product);
            store(p.d.data, p.d.type, product * p.d.step + j * p.d.ld + i, out[j * p.m + i]);
        }
    if (p.epilogue & (BIAS_GRADIENT | BIAS_GRADIENT_A | BIAS_GRADIENT_B))
        store_bias_gradient(p, out, product);
}

template <typename Number> static void run(const Product &p)
{
    enum { ROWS = Row<Number>::ROWS };
    Number *out = allocate<Number>(p.m * p.n);
    Panels<Number> panels = { allocate<Number>(rounded_up(p.m, ROWS) * p.k),
                              allocate<Number>(rounded_up(p.n, COLUMNS) * p.k),
                              allocate<Number>(ROWS * COLUMNS) };
    for (int64_t product = 0; product < p.count; product++) {
        multiply(out, p, product, panels);
        finish_all(out, p, product);
    }
    free(out);
    free(panels.a);
    free(panels.b);
    free(panels.sums);
}

/* ---------------------------------------------------------------------------------------- calls */
static bool computes_64f(cublasComputeType_t compute)
{
    return compute == CUBLAS_COMPUTE_64F || compute == CUBLAS_COMPUTE_64F_PEDANTIC;
}

double product_scale(cublasComputeType_t compute, const void *scale)
{
    return computes_64f(compute) ? *(const double *)scale : (double)*(const float *)scale;
}

static bool has_types(const Product &p)
{
    const cudaDataType_t in = p.a.type, out = p.d.type;
    if (p.b.type != in || p.c.type != out)
        return false;
    switch (p.compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
        return in == CUDA_R_64F && out == CUDA_R_64F;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return in == CUDA_R_32F && out == CUDA_R_32F;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
        return (in == CUDA_R_32F && out == CUDA_R_32F) ||
               (in == CUDA_R_16BF && (out == CUDA_R_16BF || out == CUDA_R_32F));
    default:
        return false;
    }
}

cublasStatus_t product_check(const Product &p)
{
    const int64_t a_rows = p.a.transposed ? p.k : p.m, b_rows = p.b.transposed ? p.n : p.k;
    if (p.m < 0 || p.n < 0 || p.k < 0 || p.count < 0 || p.a.ld < (a_rows > 1 ? a_rows : 1) ||
        p.b.ld < (b_rows > 1 ? b_rows : 1) || p.c.ld < (p.m > 1 ? p.m : 1) ||
        p.d.ld < (p.m > 1 ? p.m : 1))
        return CUBLAS_STATUS_INVALID_VALUE;
    return has_types(p) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

static void check_operand(const char *who, const char *what, const Matrix &matrix, int64_t rows,
                          int64_t columns, int64_t count)
{
    if (rows <= 0 || columns <= 0 || count <= 0)
        return;
    const int64_t elements = (count - 1) * matrix.step + (columns - 1) * matrix.ld + rows;
    emulation_check_memory(who, what, matrix.data, (size_t)elements * element_size(matrix.type),
                           emulation_device());
}

static void check_operands(const char *who, const Product &p)
{
    check_operand(who, "a", p.a, p.a.transposed ? p.k : p.m, p.a.transposed ? p.m : p.k, p.count);
    check_operand(who, "b", p.b, p.b.transposed ? p.n : p.k, p.b.transposed ? p.k : p.n, p.count);
    if (p.beta != 0)
        check_operand(who, "c", p.c, p.m, p.n, p.count);
    check_operand(who, "d", p.d, p.m, p.n, p.count);
    if (p.epilogue & (BIAS | BIAS_GRADIENT | BIAS_GRADIENT_A | BIAS_GRADIENT_B))
        check_operand(who, "the bias", p.bias, p.epilogue & BIAS_GRADIENT_B ? p.n : p.m, 1,
                      p.count);
    if (p.epilogue & AUXILIARY) {
        const bool bits = p.epilogue & (RELU | RELU_GRADIENT);
        const int64_t elements = (p.count - 1) * p.auxiliary.step + p.n * p.auxiliary.ld;
        emulation_check_memory(who, "the auxiliary matrix", p.auxiliary.data,
                               bits ? (size_t)elements / 8
                                    : (size_t)elements * element_size(p.auxiliary.type),
                               emulation_device());
    }
}

cublasStatus_t product_enqueue(const char *who, const Product &product, cudaStream_t stream)
{
    if (product.m == 0 || product.n == 0 || product.count == 0)
        return CUBLAS_STATUS_SUCCESS;
    check_operands(who, product);
    const cudaError_t error = emulation_enqueue(stream, [=] {
        if (computes_64f(product.compute))
            run<double>(product);
        else
            run<float>(product);
    });
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
