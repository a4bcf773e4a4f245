#include "ops/cuda/shared/layernorm.cuh"

extern "C" void layernorm_forward_cuda(TensorType type, Real *out, NormArguments norm)
{
    BY_STORAGE(type, T,
               layernorm_forward((T *)out, norm.statistics,
                                 PlainRows<T>{ (const T *)norm.x, NULL, false }, norm.weight,
                                 norm.bias, norm.eps, norm.R, norm.C));
}

extern "C" void layernorm_backward_cuda(TensorType type, Gradient dx, Gradient dweight,
                                        Gradient dbias, const Real *dout, NormArguments norm)
{
    BY_STORAGE(type, T,
               layernorm_backward(PlainRows<T>{ (const T *)norm.x, (T *)dx.data, dx.accumulate },
                                  dweight, dbias, (const T *)dout, norm));
}
