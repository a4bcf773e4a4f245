#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void cast_cpu(Gradient out, const Real *x, bool to_bf16, int64_t n)
{
    if (to_bf16)
        EACH(i, n)
            contribute(TENSOR_BF16, out.data, i, out.accumulate, x[i]);
    else
        EACH(i, n)
            contribute(TENSOR_REAL, out.data, i, out.accumulate, load(TENSOR_BF16, x, i));
}
