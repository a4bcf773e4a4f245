/* The unary functions: one row per operation.
 *
 * A row is the formula f, its gradient, and
 *
 *     UNARY(op, f, f_gradient, saved)
 *
 * where f_gradient(dout, x) or f_gradient(dout, out) returns dx = dout f'(x), and saved, FROM_X or
 * FROM_OUT, states which of the two it reads. A function of x and two constants c and d is a row
 * UNARY_CONSTANTS(op, f, f_gradient) with f(x, c, d) and f_gradient(dout, x, c, d): unary.c makes
 * NAME_of(tape, x, c, d) of it, which the op_NAME at its end calls. The formulas are inline
 * functions of C and of CUDA: other kernels and a debugger can call them.
 *
 * unary.c defines UNARY to make op_NAME and the CPU kernels of every dtype, unary.cu to make the
 * CUDA kernels of every dtype; elsewhere a row makes nothing. CONTRIBUTING.md has the steps of a
 * new operation. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_UNARY_FUNCTIONS_H
#define TAPEGRAD_OPS_ELEMENTWISE_UNARY_FUNCTIONS_H

#include "ops/shared/math.h"

#ifndef UNARY
#define UNARY(op, f, f_gradient, saved)
#define UNARY_CONSTANTS(op, f, f_gradient)
#endif

/* clang-format off */

/* exp: out = e^x
 *   d out / dx = e^x = out */
MATH_FUNCTION Real exp_gradient(Real dout, Real out)   { return dout * out; }
UNARY(exp, real_exp, exp_gradient, FROM_OUT)

/* log: out = ln x
 *   d out / dx = 1 / x */
MATH_FUNCTION Real log_gradient(Real dout, Real x)     { return dout / x; }
UNARY(log, real_log, log_gradient, FROM_X)

/* tanh: out = tanh x
 *   d out / dx = 1 - tanh^2 x = 1 - out^2 */
MATH_FUNCTION Real tanh_gradient(Real dout, Real out)  { return dout * (1 - out * out); }
UNARY(tanh, real_tanh, tanh_gradient, FROM_OUT)

/* sigmoid: out = s(x) = 1 / (1 + e^-x)
 *   d out / dx = e^-x / (1 + e^-x)^2 = s (1 - s) = out (1 - out) */
MATH_FUNCTION Real sigmoid_gradient(Real dout, Real out) { return dout * out * (1 - out); }
UNARY(sigmoid, real_sigmoid, sigmoid_gradient, FROM_OUT)

/* relu: out = max(x, 0); the comparisons let a NaN pass
 *   d out / dx = 1 for x > 0, else 0; out may be passed for x, since it has the same sign */
MATH_FUNCTION Real relu(Real x)                        { return x <= 0 ? 0 : x; }
MATH_FUNCTION Real relu_gradient(Real dout, Real x)    { return x <= 0 ? 0 : dout; }
UNARY(relu, relu, relu_gradient, FROM_X)

/* squared_relu: out = max(x, 0)^2
 *   d out / dx = 2 x for x > 0, else 0 */
MATH_FUNCTION Real squared_relu(Real x)                { return relu(x) * relu(x); }
MATH_FUNCTION Real squared_relu_gradient(Real dout, Real x)
{
    return relu_gradient(2 * x * dout, x);
}
UNARY(squared_relu, squared_relu, squared_relu_gradient, FROM_X)

/* gelu: out = x P(x), P the normal distribution function, p its density
 *   (Hendrycks and Gimpel 2016)
 *   p(x) = dP/dx = e^(-x^2 / 2) / sqrt(2 pi)
 *   d out / dx = P(x) + x p(x) */
MATH_FUNCTION Real gelu(Real x)                        { return x * real_normal(x).distribution; }
MATH_FUNCTION Real gelu_gradient(Real dout, Real x)
{
    const Normal normal = real_normal(x);
    return dout * (normal.distribution + x * normal.density);
}
UNARY(gelu, gelu, gelu_gradient, FROM_X)

/* gelu_tanh: out = x (1 + tanh(u / 2)) / 2 = x s(u), u = a (x + b x^3), a = sqrt(8 / pi),
 *   b = 0.044715 (the approximation of gelu by Hendrycks and Gimpel 2016); 1 + tanh would cancel
 *   for negative x, the sigmoid s does not
 *   d out / dx = s + x ds/dx, ds/dx = s (1 - s) du/dx, du/dx = a (1 + 3 b x^2)
 *   It rounds to 0 below -100 and to 1 above 100; x is clamped there, since x^2 may overflow. */
#define GELU_TANH_A ((Real)1.5957691216057308)
#define GELU_TANH_B ((Real)0.044715)
MATH_FUNCTION Real gelu_tanh_inner(Real x)
{
    return GELU_TANH_A * (x + GELU_TANH_B * x * x * x);
}
MATH_FUNCTION Real gelu_tanh(Real x)
{
    return real_times_sigmoid(x, gelu_tanh_inner(x));
}
MATH_FUNCTION Real gelu_tanh_gradient(Real dout, Real x)
{
    x = x < -100 ? -100 : x;
    x = x > 100 ? 100 : x;
    const Real s = real_sigmoid(gelu_tanh_inner(x));
    return dout * s * (1 + x * (1 - s) * GELU_TANH_A * (1 + 3 * GELU_TANH_B * x * x));
}
UNARY(gelu_tanh, gelu_tanh, gelu_tanh_gradient, FROM_X)

/* elu: out = x for x > 0, e^x - 1 for x <= 0  (Clevert et al. 2016)
 *   d out / dx = 1 for x > 0, that is out > 0; else e^x = out + 1 */
MATH_FUNCTION Real elu(Real x)                         { return x > 0 ? x : real_expm1(x); }
MATH_FUNCTION Real elu_gradient(Real dout, Real out)
{
    return out > 0 ? dout : dout * (out + 1);
}
UNARY(elu, elu, elu_gradient, FROM_OUT)

/* elu_plus_one: out = x + 1 for x > 0, e^x for x <= 0
 *   d out / dx = 1 for x > 0, that is out > 1; else e^x = out */
MATH_FUNCTION Real elu_plus_one(Real x)                { return x > 0 ? x + 1 : real_exp(x); }
MATH_FUNCTION Real elu_plus_one_gradient(Real dout, Real out)
{
    return out > 1 ? dout : dout * out;
}
UNARY(elu_plus_one, elu_plus_one, elu_plus_one_gradient, FROM_OUT)

/* softplus: out = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), where nothing overflows
 *   d out / dx = e^x / (1 + e^x) = sigmoid(x) */
MATH_FUNCTION Real softplus(Real x)
{
    return (x < 0 ? 0 : x) + real_log1p(real_exp(x < 0 ? x : -x));
}
MATH_FUNCTION Real softplus_gradient(Real dout, Real x) { return real_times_sigmoid(dout, x); }
UNARY(softplus, softplus, softplus_gradient, FROM_X)

/* sqrt: out = sqrt x
 *   d out / dx = 1 / (2 sqrt x) = 1 / (2 out) */
MATH_FUNCTION Real sqrt_gradient(Real dout, Real out)  { return dout / (2 * out); }
UNARY(sqrt, real_sqrt, sqrt_gradient, FROM_OUT)

/* abs: out = |x|
 *   d out / dx = -1 for x < 0, 1 for x > 0; 0 at 0 */
MATH_FUNCTION Real abs_gradient(Real dout, Real x)
{
    return x == 0 ? 0 : x < 0 ? -dout : dout;
}
UNARY(abs, real_abs, abs_gradient, FROM_X)

/* sin: out = sin x     d out / dx = cos x
 * cos: out = cos x     d out / dx = -sin x */
MATH_FUNCTION Real sin_gradient(Real dout, Real x)     { return dout * real_cos(x); }
MATH_FUNCTION Real cos_gradient(Real dout, Real x)     { return -dout * real_sin(x); }
UNARY(sin, real_sin, sin_gradient, FROM_X)
UNARY(cos, real_cos, cos_gradient, FROM_X)

/* scale: out = c x
 *   d out / dx = c */
MATH_FUNCTION Real scale(Real x, Real c, Real d)       { return (void)d, c * x; }
MATH_FUNCTION Real scale_gradient(Real dout, Real x, Real c, Real d)
{
    return (void)x, (void)d, c * dout;
}
UNARY_CONSTANTS(scale, scale, scale_gradient)

/* add_scalar: out = x + c
 *   d out / dx = 1 */
MATH_FUNCTION Real add_scalar(Real x, Real c, Real d)  { return (void)d, x + c; }
MATH_FUNCTION Real add_scalar_gradient(Real dout, Real x, Real c, Real d)
{
    return (void)x, (void)c, (void)d, dout;
}
UNARY_CONSTANTS(add_scalar, add_scalar, add_scalar_gradient)

/* clamp: out = min(max(x, low), high); the comparisons let a NaN pass
 *   d out / dx = 1 for low <= x <= high, else 0 */
MATH_FUNCTION Real clamp(Real x, Real low, Real high)
{
    return x < low ? low : x > high ? high : x;
}
MATH_FUNCTION Real clamp_gradient(Real dout, Real x, Real low, Real high)
{
    return x < low || x > high ? 0 : dout;
}
UNARY_CONSTANTS(clamp, clamp, clamp_gradient)

/* clang-format on */
#undef UNARY
#undef UNARY_CONSTANTS
#endif
