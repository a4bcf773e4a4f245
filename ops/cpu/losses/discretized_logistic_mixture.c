/* discretized_logistic_mixture in bf16, converted as a whole: g and sums are of all rows. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

void logistic_mixture_forward_bf16(Real *out, MixtureSums *sums, const Real *parameters,
                                   const int32_t *targets, int64_t R, int64_t K)
{
    Real *rows = bf16_reals(parameters, R * 3 * K);
    logistic_mixture_forward_plain(out, sums, rows, targets, R, K);
    device_workspace_free(rows);
}

void logistic_mixture_backward_bf16(Gradient d, const Real *dout, const MixtureSums *sums,
                                    const Real *parameters, const int32_t *targets, int64_t R,
                                    int64_t K)
{
    const int64_t n = R * 3 * K;
    Real *rows = bf16_reals(parameters, n), *d_rows = device_workspace(n);
    logistic_mixture_backward_plain((Gradient){ d_rows, false }, dout, sums, rows, targets, R, K);
    cast_cpu(d, d_rows, true, n);
    device_workspace_free(d_rows);
    device_workspace_free(rows);
}
