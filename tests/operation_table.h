/* The elementwise operations, one row each. From this table test_elementwise checks values,
 * derivatives of unary ones and misuse, test_operations all that tests/operations.h names, and
 * bench/operations measures.
 *
 *     ROW(name, operation, domain, tolerance, f(x), f'(x))
 *     ROW(name, operation, domain, passes, f(a, b))
 *
 * The formulas are in double precision. tolerance is the largest error of a float32 derivative,
 * relative to max(1, |exact|); the tolerance of a value is 4e-7. passes is the number of transfers
 * per element between memory and ideal kernels, forward and backward. */
#ifndef TAPEGRAD_TESTS_OPERATION_TABLE_H
#define TAPEGRAD_TESTS_OPERATION_TABLE_H

#include <math.h>
#include <tapegrad.h>

typedef enum Domain {
    ANY,
    POSITIVE, /* x > 0, or b > 0 */
    KINKED,   /* the derivative jumps at 0; of two inputs, where they are equal */
    STEPPED,  /* the value jumps where the inputs are equal, and no gradient flows */
} Domain;

static inline Tensor *op_scale_by_constant(Tape *tape, Tensor *x)
{
    return op_scale(tape, x, -2.5);
}
static inline Tensor *op_add_constant(Tape *tape, Tensor *x)
{
    return op_add_scalar(tape, x, 0.75);
}
static inline Tensor *op_clamp_between(Tape *tape, Tensor *x)
{
    return op_clamp(tape, x, 0, 1000);
}
static inline Tensor *op_pow_of_constant(Tape *tape, Tensor *x)
{
    return op_pow(tape, x, 1.75);
}

/* For gelu: the normal distribution function and its density; (1 + tanh u(x)) / 2 of the
 * approximation, and u'(x). */
static inline double normal_cdf(double x)
{
    return erfc(x / -sqrt(2)) / 2;
}
static inline double normal_pdf(double x)
{
    return exp(-x * x / 2) / sqrt(2 * acos(-1));
}
static inline double gelu_cdf(double x)
{
    return 1 / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}
static inline double gelu_du(double x)
{
    return sqrt(2 / acos(-1)) * (1 + 3 * 0.044715 * x * x);
}

/* clang-format off */
#define UNARY_OPERATIONS(ROW)                                                                      \
    ROW(exp, op_exp, ANY, 4e-7, exp(x), exp(x))                                                    \
    ROW(log, op_log, POSITIVE, 4e-7, log(x), 1 / x)                                                \
    ROW(tanh, op_tanh, ANY, 4e-7, tanh(x), 1 - tanh(x) * tanh(x))                                  \
    ROW(sigmoid, op_sigmoid, ANY, 4e-7, 1 / (1 + exp(-x)), 1 / ((1 + exp(-x)) * (1 + exp(x))))     \
    ROW(relu, op_relu, KINKED, 4e-7, fmax(x, 0), x > 0)                                            \
    ROW(gelu, op_gelu, ANY, 4e-7, x * normal_cdf(x), normal_cdf(x) + x * normal_pdf(x))            \
    ROW(gelu_tanh, op_gelu_tanh, ANY, 4e-6, x * gelu_cdf(x),                                       \
        gelu_cdf(x) * (1 + 2 * x * (1 - gelu_cdf(x)) * gelu_du(x)))                                \
    ROW(elu, op_elu, ANY, 4e-7, x > 0 ? x : expm1(x), x > 0 ? 1 : exp(x))                          \
    ROW(elu_plus_one, op_elu_plus_one, ANY, 4e-7, x > 0 ? x + 1 : exp(x), x > 0 ? 1 : exp(x))      \
    ROW(softplus, op_softplus, ANY, 4e-7, log1p(exp(x)), 1 / (1 + exp(-x)))                        \
    ROW(silu, op_silu, ANY, 1e-6, x / (1 + exp(-x)),                                               \
        (1 + x / (1 + exp(x))) / (1 + exp(-x)))                                                    \
    ROW(log_sigmoid, op_log_sigmoid, ANY, 4e-7, -log1p(exp(-x)), 1 / (1 + exp(x)))                 \
    ROW(squared_relu, op_squared_relu, KINKED, 4e-7, x > 0 ? x * x : 0, 2 * fmax(x, 0))            \
    ROW(scale, op_scale_by_constant, ANY, 4e-7, -2.5 * x, -2.5)                                    \
    ROW(add_scalar, op_add_constant, ANY, 4e-7, x + 0.75, 1)                                       \
    ROW(clamp, op_clamp_between, KINKED, 4e-7, fmin(fmax(x, 0), 1000), x >= 0 && x <= 1000)        \
    ROW(pow, op_pow_of_constant, POSITIVE, 4e-7, pow(x, 1.75), 1.75 * pow(x, 0.75))                \
    ROW(sqrt, op_sqrt, POSITIVE, 4e-7, sqrt(x), 0.5 / sqrt(x))                                     \
    ROW(square, op_square, ANY, 4e-7, x * x, 2 * x)                                                \
    ROW(abs, op_abs, KINKED, 4e-7, fabs(x), (x > 0) - (x < 0))                                     \
    ROW(sin, op_sin, ANY, 4e-7, sin(x), cos(x))                                                    \
    ROW(cos, op_cos, ANY, 4e-7, cos(x), -sin(x))

#define BINARY_OPERATIONS(ROW)                                                                     \
    ROW(add, op_add, ANY, 6, a + b)                                                                \
    ROW(subtract, op_subtract, ANY, 6, a - b)                                                      \
    ROW(multiply, op_multiply, ANY, 9, a * b)                                                      \
    ROW(divide, op_divide, POSITIVE, 9, a / b)                                                     \
    ROW(maximum, op_maximum, KINKED, 9, fmax(a, b))                                                \
    ROW(minimum, op_minimum, KINKED, 9, fmin(a, b))                                                \
    ROW(equal, op_equal, STEPPED, 3, a == b)                                                       \
    ROW(less, op_less, STEPPED, 3, a < b)                                                          \
    ROW(less_equal, op_less_equal, STEPPED, 3, a <= b)
/* clang-format on */

typedef struct Unary {
    const char *name;
    Tensor *(*operation)(Tape *tape, Tensor *x);
    Domain domain;
    double tolerance;
    double (*exact)(double x);
    double (*derivative)(double x);
} Unary;

typedef struct Binary {
    const char *name;
    Tensor *(*operation)(Tape *tape, Tensor *a, Tensor *b);
    Domain domain;
    double passes;
    double (*exact)(double a, double b);
} Binary;

#define UNARY_FUNCTION(function, value)                                                            \
    static inline double function(double x)                                                        \
    {                                                                                              \
        (void)x;                                                                                   \
        return value;                                                                              \
    }
#define BINARY_FUNCTION(function, value)                                                           \
    static inline double function(double a, double b)                                              \
    {                                                                                              \
        return value;                                                                              \
    }
#define UNARY_FUNCTIONS(name, operation, domain, tolerance, value, derivative)                     \
    UNARY_FUNCTION(exact_##name, value)                                                            \
    UNARY_FUNCTION(derivative_of_##name, derivative)
#define BINARY_FUNCTIONS(name, operation, domain, passes, value)                                   \
    BINARY_FUNCTION(exact_##name, value)
UNARY_OPERATIONS(UNARY_FUNCTIONS)
BINARY_OPERATIONS(BINARY_FUNCTIONS)

#define UNARY_ENTRY(name, operation, domain, tolerance, value, derivative)                         \
    { "op_" #name, operation, domain, tolerance, exact_##name, derivative_of_##name },
#define BINARY_ENTRY(name, operation, domain, passes, value)                                       \
    { "op_" #name, operation, domain, passes, exact_##name },
static const Unary unaries[] = { UNARY_OPERATIONS(UNARY_ENTRY) };
static const Binary binaries[] = { BINARY_OPERATIONS(BINARY_ENTRY) };
enum { UNARIES = sizeof unaries / sizeof *unaries, BINARIES = sizeof binaries / sizeof *binaries };

#endif
