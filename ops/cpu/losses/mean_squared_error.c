/* mean_squared_error in bf16. */
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

void mean_squared_error_forward_bf16(Real *out, const Real *p, const Real *t, int64_t n)
{
    double sum = 0;
    SUM(+, sum)
    for (int64_t i = 0; i < n; i++) {
        const Real difference = load(TENSOR_BF16, p, i) - load(TENSOR_BF16, t, i);
        sum += (double)difference * difference;
    }
    *out = (Real)(sum / (double)n);
}

void mean_squared_error_backward_bf16(Gradient dx, Real sign, const Real *dout, const Real *p,
                                      const Real *t, int64_t n)
{
    const Real factor = sign * 2 * *dout / (Real)n;
    Real *to = dx.data; /* gcc 12 vectorizes no loop that reads a struct of another function */
    const bool accumulate = dx.accumulate;
    EACH(i, n)
        contribute(TENSOR_BF16, to, i, accumulate,
                   factor * (load(TENSOR_BF16, p, i) - load(TENSOR_BF16, t, i)));
}
