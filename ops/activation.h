/* What op_relu, op_gelu and op_gelu_tanh compute of one number, and the derivatives, for their own
 * kernels and op_linear_activation's. Their files tell the mathematics. */
#ifndef TAPEGRAD_OPS_ACTIVATION_H
#define TAPEGRAD_OPS_ACTIVATION_H

#include "ops/ops.h"

#ifdef __cplusplus
#include "ops/math.cuh"
#else
#include "ops/math.h"
#endif

/* The comparisons are turned so that not-a-number passes. */
MATH_FUNCTION Real relu(Real x)
{
    return x <= 0 ? 0 : x;
}
/* dout where x > 0, else 0; of x, relu(x) tells enough */
MATH_FUNCTION Real relu_gradient(Real dout, Real x)
{
    return x <= 0 ? 0 : dout;
}

MATH_FUNCTION Real gelu_distribution(Real x)
{
    return (1 + real_erf(x * (Real)0.70710678118654752)) / 2;
}
MATH_FUNCTION Real gelu_density(Real x)
{
    return (Real)0.39894228040143268 * real_exp(-x * x / 2);
}
MATH_FUNCTION Real gelu(Real x)
{
    return x * gelu_distribution(x);
}
MATH_FUNCTION Real gelu_slope(Real x)
{
    return gelu_distribution(x) + x * gelu_density(x);
}

#define GELU_TANH_A ((Real)0.79788456080286536)
#define GELU_TANH_B ((Real)0.044715)

MATH_FUNCTION Real gelu_tanh_inner(Real x)
{
    return GELU_TANH_A * (x + GELU_TANH_B * x * x * x);
}
MATH_FUNCTION Real gelu_tanh(Real x)
{
    return x * ((1 + real_tanh(gelu_tanh_inner(x))) / 2);
}
/* 0 below -10 and 1 above 10, where x^2 might overflow */
MATH_FUNCTION Real gelu_tanh_slope(Real x)
{
    x = x < -10 ? -10 : x;
    x = x > 10 ? 10 : x;
    Real t = real_tanh(gelu_tanh_inner(x));
    return ((1 + t) + x * (1 - t * t) * GELU_TANH_A * (1 + 3 * GELU_TANH_B * x * x)) / 2;
}

/* f(y) of any of them, and g f'(y); of relu y may be f(y) instead. */
MATH_FUNCTION Real activation_of(Activation f, Real y)
{
    switch (f) {
    case ACTIVATION_RELU:
        return relu(y);
    case ACTIVATION_GELU:
        return gelu(y);
    case ACTIVATION_GELU_TANH:
        return gelu_tanh(y);
    case ACTIVATION_NONE:
        break;
    }
    return y;
}
MATH_FUNCTION Real activation_gradient(Activation f, Real g, Real y)
{
    switch (f) {
    case ACTIVATION_RELU:
        return relu_gradient(g, y);
    case ACTIVATION_GELU:
        return g * gelu_slope(y);
    case ACTIVATION_GELU_TANH:
        return g * gelu_tanh_slope(y);
    case ACTIVATION_NONE:
        break;
    }
    return g;
}

#endif
