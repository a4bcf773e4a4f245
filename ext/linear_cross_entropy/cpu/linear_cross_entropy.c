/* linear_cross_entropy in bf16: a row's h, in Real, is converted while it is in the cache. */
#include "ext/linear_cross_entropy/kernels.h"
#include "ops/cpu/shared/storage.h"

static void rows_bf16(Real *losses, Real *h, const Real *g, const Real *W, LogitsBlock block)
{
    const double scale = quotient_or_one(g, W);
    const int64_t V = block.V;
    EACH_ROW(r, block.R, V) {
        linear_cross_entropy_row(losses, h != NULL, scale, &block, r);
        if (h)
            convert_elements(TENSOR_BF16, elements_at(TENSOR_BF16, h, r * V), TENSOR_REAL,
                             block.logits + r * V, V);
    }
}

static void scale_bf16(Gradient dx, const Real *g, const Real *W, const Real *sums, int64_t n)
{
    const Real factor = *g / *W;
    Real *to = dx.data; /* gcc 12 vectorizes no loop that reads a struct of another function */
    const bool accumulate = dx.accumulate;
    EACH(i, n)
        contribute(TENSOR_BF16, to, i, accumulate, factor * sums[i]);
}

const LinearCrossEntropyKernels linear_cross_entropy_cpu_bf16 = { rows_bf16, scale_bf16 };
