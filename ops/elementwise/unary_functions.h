/* The unary functions: one row per operation.
 *
 *     ROW(gelu, gelu(x), gelu_gradient(dout, x), x)
 *
 * has the operation's name; out, an expression of x; dL/dx, an expression of dout = dL/dout and of
 * x or out; and which of the two that is, x or out: the tensor that the backward pass reads. Both
 * expressions may use the operation's constants k. A long formula is an inline function of C and
 * CUDA, which other kernels and a debugger can call, below its derivation.
 *
 *     PERIODIC(cos, 1)
 *
 * is sin(x + quarters pi / 2), here of 1 quarter; its derivative has one quarter more.
 *
 * The rows make the loops of unary.c, which serve every CPU device and dtype, and the kernels of
 * ops/cuda/elementwise/unary.cu. CONTRIBUTING.md has the steps of a new operation. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_UNARY_FUNCTIONS_H
#define TAPEGRAD_OPS_ELEMENTWISE_UNARY_FUNCTIONS_H

#include "ops/shared/math.h"

/* The constants of an operation, such as those of op_clamp: low and high. */
typedef struct Constants {
    Real c, d;
} Constants;

/* clang-format off */

/* Functions whose derivative the operation's row states:
 *   exp           out = e^x                    d out / dx = e^x = out
 *   log           out = ln x                   d out / dx = 1 / x
 *   tanh          out = tanh x                 d out / dx = 1 - tanh^2 x = 1 - out^2
 *   sigmoid       out = s = 1 / (1 + e^-x)     d out / dx = e^-x / (1 + e^-x)^2 = s (1 - s)
 *   sqrt          out = sqrt x                 d out / dx = 1 / (2 sqrt x) = 1 / (2 out)
 *   sin           out = sin x                  d out / dx = cos x = sin(x + pi / 2)
 *   cos           out = sin(x + pi / 2)        d out / dx = -sin x = sin(x + pi)
 *   square        out = x^2                    d out / dx = 2 x
 *   elu_plus_one  out = x + 1 for x > 0,       d out / dx = 1 for x > 0, that is out > 1,
 *                 e^x for x <= 0                            else e^x = out
 *   scale         out = c x                    d out / dx = c
 *   add_scalar    out = x + c                  d out / dx = 1 */

/* relu: out = max(x, 0); the comparisons let a NaN pass
 *   d out / dx = 1 for x > 0, else 0; out may be passed for x: it is positive where x is */
MATH_FUNCTION Real relu(Real x)                     { return x <= 0 ? 0 : x; }
MATH_FUNCTION Real relu_gradient(Real dout, Real x) { return x <= 0 ? 0 : dout; }

/* squared_relu: out = max(x, 0)^2
 *   d out / dx = 2 x for x > 0, else 0 */
MATH_FUNCTION Real squared_relu(Real x)             { return relu(x) * relu(x); }

/* gelu: out = x P(x), P the normal distribution function, p its density
 *   (Hendrycks and Gimpel 2016)
 *   p(x) = dP/dx = e^(-x^2 / 2) / sqrt(2 pi)
 *   d out / dx = P(x) + x p(x) */
MATH_FUNCTION Real gelu(Real x)                     { return x * real_normal(x).distribution; }
MATH_FUNCTION Real gelu_gradient(Real dout, Real x)
{
    const Normal normal = real_normal(x);
    return dout * (normal.distribution + x * normal.density);
}

/* gelu_tanh: out = x (1 + tanh(u / 2)) / 2 = x s(u), u = a (x + b x^3), a = sqrt(8 / pi),
 *   b = 0.044715 (the approximation of gelu by Hendrycks and Gimpel 2016); 1 + tanh would cancel
 *   for negative x, the sigmoid s does not
 *   d out / dx = s + x ds/dx, ds/dx = s (1 - s) du/dx, du/dx = a (1 + 3 b x^2)
 *   The derivative rounds to 0 below -100 and to 1 above 100; its function clamps x there, since
 *   x^2 may overflow. */
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

/* elu: out = x for x > 0, e^x - 1 for x <= 0  (Clevert et al. 2016)
 *   d out / dx = 1 for x > 0, else e^x, of which out + 1 would lose the digits */
MATH_FUNCTION Real elu(Real x)                      { return x > 0 ? x : real_expm1(x); }

/* softplus: out = ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|), where nothing overflows
 *   d out / dx = e^x / (1 + e^x) = sigmoid(x) */
MATH_FUNCTION Real softplus(Real x)
{
    return (x < 0 ? 0 : x) + real_log1p(real_exp(x < 0 ? x : -x));
}
MATH_FUNCTION Real softplus_gradient(Real dout, Real x) { return real_times_sigmoid(dout, x); }

/* silu: out = x s, s = 1 / (1 + e^-x)  (Hendrycks and Gimpel 2016; Elfwing et al. 2018)
 *   d out / dx = s + x ds/dx, ds/dx = s (1 - s) */
MATH_FUNCTION Real silu(Real x)                     { return real_times_sigmoid(x, x); }
MATH_FUNCTION Real silu_gradient(Real dout, Real x)
{
    const Real s = real_sigmoid(x);
    return dout * s * (1 + x * (1 - s));
}

/* log_sigmoid: out = ln(1 / (1 + e^-x)) = -softplus(-x)
 *   d out / dx = softplus'(-x) = sigmoid(-x) */

/* abs: out = |x|
 *   d out / dx = -1 for x < 0, 1 for x > 0; 0 at 0 */
MATH_FUNCTION Real abs_gradient(Real dout, Real x)  { return x == 0 ? 0 : x < 0 ? -dout : dout; }

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

/* pow: out = x^c
 *   d out / dx = c x^(c-1); for c = 0, where x^-1 is infinite at 0, it is 0 = c x^0 */
MATH_FUNCTION Real pow_gradient(Real dout, Real x, Real c)
{
    return dout * c * real_pow(x, c - 1 + (Real)(c == 0));
}

#define UNARY_ROWS(ROW, PERIODIC)                                                                  \
    /*  op            out                      dL/dx                              dL/dx reads */   \
    ROW(exp,          real_exp(x),             dout * out,                               out)      \
    ROW(log,          real_log(x),             dout / x,                                 x)        \
    ROW(tanh,         real_tanh(x),            dout * (1 - out * out),                   out)      \
    ROW(sigmoid,      real_sigmoid(x),         dout * out * (1 - out),                   out)      \
    ROW(relu,         relu(x),                 relu_gradient(dout, x),                   x)        \
    ROW(squared_relu, squared_relu(x),         relu_gradient(2 * x * dout, x),           x)        \
    ROW(gelu,         gelu(x),                 gelu_gradient(dout, x),                   x)        \
    ROW(gelu_tanh,    gelu_tanh(x),            gelu_tanh_gradient(dout, x),              x)        \
    ROW(elu,          elu(x),                  x > 0 ? dout : dout * real_exp(x),        x)        \
    ROW(elu_plus_one, x > 0 ? x + 1 : real_exp(x), out > 1 ? dout : dout * out,          out)      \
    ROW(softplus,     softplus(x),             softplus_gradient(dout, x),               x)        \
    ROW(silu,         silu(x),                 silu_gradient(dout, x),                   x)        \
    ROW(log_sigmoid,  -softplus(-x),           softplus_gradient(dout, -x),              x)        \
    ROW(sqrt,         real_sqrt(x),            dout / (2 * out),                         out)      \
    ROW(square,       x * x,                   2 * x * dout,                             x)        \
    ROW(abs,          real_abs(x),             abs_gradient(dout, x),                    x)        \
    PERIODIC(sin,     0)                                                                           \
    PERIODIC(cos,     1)                                                                           \
    ROW(scale,        k.c * x,                 k.c * dout,                               x)        \
    ROW(add_scalar,   x + k.c,                 dout,                                     x)        \
    ROW(clamp,        clamp(x, k.c, k.d),      clamp_gradient(dout, x, k.c, k.d),        x)        \
    ROW(pow,          real_pow(x, k.c),        pow_gradient(dout, x, k.c),               x)
/* clang-format on */

#define ROW(op, ...) UNARY_##op,
typedef enum UnaryFunction { UNARY_ROWS(ROW, ROW) } UnaryFunction; /* UNARY_exp, UNARY_log, ... */
#undef ROW

#endif
