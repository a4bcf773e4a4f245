/* Matrix products on the CPU. out is split into one piece per thread, and each thread computes its
 * piece as a product of its own: by register tiles (tiles.c), or by oneDNN (onednn.c) where the
 * build has it, the device allows it and it is faster. By tiles an element is the same in any
 * piece. */
#include "ops/cpu/shared/multiply.h"
#include "ops/cpu/shared/bf16.h"
#include "ops/cpu/shared/packing.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "tensor/internal.h"

/* The start of part `part` of `size` elements: a multiple of a cache line. */
static int64_t part_start(int64_t size, int64_t part, int64_t parts)
{
    const int64_t begin = round_up(size * part / parts, LINE);
    return part == parts || begin > size ? size : begin;
}

/* One part of `count` products from `first` on: part of out's rows or columns, whichever are
 * more. */
static ProductPiece product_piece(Result out, Operand a, Operand b, const Real *bias, Product p,
                                  int64_t first, int64_t count, int64_t part, int64_t parts)
{
    int64_t out_at = first * p.out_step, a_at = first * p.a_step, b_at = first * p.b_step;
    const bool by_rows = p.n >= p.m;
    const int64_t size = by_rows ? p.n : p.m;
    const int64_t begin = part_start(size, part, parts),
                  length = part_start(size, part + 1, parts) - begin;
    if (by_rows) {
        out_at += begin * p.m;
        a_at += p.transpose_a ? begin : begin * p.k;
    } else {
        out_at += begin;
        b_at += p.transpose_b ? begin * p.k : begin;
    }
    return (ProductPiece){ .out = elements_at((int)out.type, out.data, out_at),
                           .a = elements_at((int)a.type, a.data, a_at),
                           .b = elements_at((int)b.type, b.data, b_at),
                           .n = by_rows ? length : p.n,
                           .m = by_rows ? p.m : length,
                           .count = count,
                           .bias = bias && !by_rows ? bias + begin : bias };
}

bool uses_onednn(void)
{
#ifdef TAPEGRAD_ONEDNN
    return !device_is_repeatable(device_current());
#else
    return false;
#endif
}

/* Returns false if memory is exhausted. onednn: uses_onednn() of the caller, since the device is
 * current in its thread alone. */
static bool multiply_piece(ProductPiece piece, Result out, TensorType type, bool accumulate,
                           Product p, Real *packed, bool onednn)
{
#ifdef TAPEGRAD_ONEDNN
    /* Multiplications from which oneDNN's product is faster: of many rows, and of few. */
    enum { FEW = 8, MANY_WORK = 1 << 18, FEW_WORK = 1 << 13 };
    if (type == TENSOR_BF16)
        return multiply_bf16(piece, out.type, accumulate, p);
    if (onednn && piece.n * piece.m * p.k >= (piece.n > FEW ? MANY_WORK : FEW_WORK))
        return multiply_onednn(piece, accumulate, p);
#endif
    (void)out, (void)type, (void)onednn;
    multiply_tiles(piece, accumulate, p, packed);
    return true;
}

/* With at least one product per thread, or little work, each thread computes whole products;
 * otherwise each product is split into parts. Products that add to a shared out run one after
 * another. */
void product_with_bias(Result out, Operand a, Operand b, const Real *bias, Product p)
{
    const bool shared = p.out_step == 0, bf16 = a.type == TENSOR_BF16, onednn = uses_onednn();
    /* Nanoseconds per product. */
    const double cost = 500 + (bf16 ? 0.008 : 0.015) * (double)(p.n * p.m * p.k);
    const bool small = (double)p.count * cost < MIN_WORK;
    const int threads = device_threads();
    const int64_t groups = shared ? 1 : minimum(p.count, threads);
    const int64_t parts = small || groups == threads ? 1 : threads;
    const int64_t size = bf16 ? 0 : product_workspace(p);
    Real *packed = device_workspace(size * groups * parts);
    bool ok = true;
    PRAGMA(omp parallel for schedule(static) reduction(&& : ok)
               num_threads(device_threads_for(p.count, cost)))
    for (int64_t item = 0; item < groups * parts; item++) {
        const int64_t group = item / parts, end = p.count * (group + 1) / groups;
        int64_t first = p.count * group / groups;
        const int64_t at_once = bf16 && !shared ? end - first : 1;
        for (; first < end; first += at_once) {
            const bool accumulate = out.accumulate || (shared && first > 0);
            const ProductPiece piece =
                product_piece(out, a, b, bias, p, first, at_once, item % parts, parts);
            if (piece.n > 0 && piece.m > 0)
                ok = multiply_piece(piece, out, a.type, accumulate, p, packed + item * size,
                                    onednn) &&
                     ok;
        }
    }
    device_workspace_free(packed);
    if (!ok)
        error_raise_operation("memory is exhausted: the product could not allocate its workspace");
}

/* ------------------------------------------------------------------------------------------- bf16
 * Where there are no products of bf16, operands are converted to float, and so is a result in bf16.
 * A sum of products in bf16 is computed in float too, so that it is rounded once. */

void product_cpu(Precision precision, Result out, Operand a, Operand b, Product p)
{
    (void)precision;
    const bool converts = a.type == TENSOR_BF16 && !device_has_bf16(device_current());
    const bool sums = p.out_step == 0 && p.count > 1;
    const int64_t last = p.count - 1, elements = last * p.out_step + p.n * p.m;
    Real *a_real = converts ? bf16_reals(a.data, last * p.a_step + p.n * p.k) : NULL;
    Real *b_real = converts ? bf16_reals(b.data, last * p.b_step + p.k * p.m) : NULL;
    if (converts) {
        a = (Operand){ a_real, TENSOR_REAL };
        b = (Operand){ b_real, TENSOR_REAL };
    }
    if (out.type == TENSOR_BF16 && (converts || sums)) {
        Real *values = device_workspace(elements);
        product_with_bias((Result){ values, TENSOR_REAL, false }, a, b, NULL, p);
        cast_cpu((Gradient){ out.data, out.accumulate }, values, true, elements);
        device_workspace_free(values);
    } else {
        product_with_bias(out, a, b, NULL, p);
    }
    device_workspace_free(b_real);
    device_workspace_free(a_real);
}

#ifndef TAPEGRAD_ONEDNN
bool cpu_has_bf16(void)
{
    return false;
}

void cpu_prepare_products(void) {}
#endif
