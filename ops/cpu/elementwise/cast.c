#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void cast_cpu(Gradient out, const Real *x, bool to_bf16, int64_t n)
{
    Real *to = out.data; /* gcc 12 vectorizes no loop that reads a struct of another function */
    const bool accumulate = out.accumulate;
    if (to_bf16)
        EACH(i, n)
            contribute(TENSOR_BF16, to, i, accumulate, x[i]);
    else
        EACH(i, n)
            contribute(TENSOR_REAL, to, i, accumulate, load(TENSOR_BF16, x, i));
}
