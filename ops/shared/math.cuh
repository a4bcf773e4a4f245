/* CUDA's math functions under the names of ops/shared/math.h, for formulas shared with C. */
#ifndef TAPEGRAD_OPS_SHARED_MATH_CUH
#define TAPEGRAD_OPS_SHARED_MATH_CUH

#include "tensor/kernel.cuh"

#define MATH_FUNCTION __device__ static inline

MATH_FUNCTION Real real_abs(Real x)
{
    return fabs(x);
}
MATH_FUNCTION Real real_sqrt(Real x)
{
    return sqrt(x);
}
MATH_FUNCTION Real real_sin(Real x)
{
    return sin(x);
}
MATH_FUNCTION Real real_cos(Real x)
{
    return cos(x);
}
MATH_FUNCTION Real real_exp(Real x)
{
    return exp(x);
}
MATH_FUNCTION Real real_expm1(Real x)
{
    return expm1(x);
}
MATH_FUNCTION Real real_log(Real x)
{
    return log(x);
}
MATH_FUNCTION Real real_log1p(Real x)
{
    return log1p(x);
}
MATH_FUNCTION Real real_tanh(Real x)
{
    return tanh(x);
}
MATH_FUNCTION Real real_erf(Real x)
{
    return erf(x);
}
MATH_FUNCTION Real real_sigmoid(Real x)
{
    return 1 / (1 + exp(-x));
}
MATH_FUNCTION Real real_times_sigmoid(Real factor, Real x)
{
    return factor / (1 + exp(-x));
}

#endif
