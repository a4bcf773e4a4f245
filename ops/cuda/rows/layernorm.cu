#include "ops/rows/kernels.h"
#include "ops/cuda/rows/layernorm.cuh"

extern "C" void layernorm_forward_cuda(TensorType type, Real *out, Statistics *statistics,
                                       const Real *x, const Real *weight, const Real *bias,
                                       Real eps, int64_t R, int64_t C)
{
    BY_STORAGE(type, T,
               layernorm_forward((T *)out, statistics, PlainRows<T>{ (const T *)x, NULL, false },
                                 weight, bias, eps, R, C));
}

extern "C" void layernorm_backward_cuda(TensorType type, Real *dx, bool accumulate, Real *dweight,
                                        Real *dbias, int64_t parts, const Real *dout, const Real *x,
                                        const Real *weight, const Statistics *statistics, int64_t R,
                                        int64_t C)
{
    BY_STORAGE(type, T,
               layernorm_backward(PlainRows<T>{ (const T *)x, (T *)dx, accumulate }, dweight, dbias,
                                  parts, (const T *)dout, weight, statistics, R, C));
}

/* One part per block: enough blocks to fill a GPU, but about 8 rows or more per block, so that
 * writing the partial sums costs little compared with reading the rows. */
extern "C" int64_t layernorm_parts_cuda(int64_t R)
{
    const int64_t most = 256, parts = (R + 7) / 8;
    return parts < most ? parts : most;
}
