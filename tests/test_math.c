/* The functions of ops/shared/math.h against libm in double precision, over floats of
 * every magnitude. */
#include "ops/shared/math.h"
#include "tests/support.h"

enum { BATCH = 4096 };

#define SWEPT(name)                                                                                \
    static void sweep_##name(Real *out, const Real *x)                                             \
    {                                                                                              \
        _Pragma("omp simd") for (int i = 0; i < BATCH; i++) out[i] = real_##name(x[i]);            \
    }
SWEPT(exp)
SWEPT(expm1)
SWEPT(tanh)
SWEPT(sigmoid)
SWEPT(log)
SWEPT(log1p)
static Real real_distribution(Real x)
{
    return real_normal(x).distribution;
}
static Real real_density(Real x)
{
    return real_normal(x).density;
}
SWEPT(distribution)
SWEPT(density)
static Real real_near_sin(Real x)
{
    return math_sine(x, 0);
}
static Real real_near_cos(Real x)
{
    return math_sine(x, 1);
}
SWEPT(near_sin)
SWEPT(near_cos)
SWEPT(sin)
SWEPT(cos)
static Real constant; /* of real_power */
static Real real_power(Real x)
{
    return real_pow(x, constant);
}
SWEPT(power)

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* |value - exact| in ulps of a Real of exact's magnitude; denormals use the ulp of the smallest
 * normal number. */
static double units(Real value, double exact)
{
    enum { DIGITS = sizeof(Real) == 4 ? 24 : 53, LOWEST = sizeof(Real) == 4 ? -125 : -1021 };
    if (fabs(exact) >= (sizeof(Real) == 4 ? 0x1p128 : INFINITY))
        return isinf(value) && (value > 0) == (exact > 0) ? 0 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    exponent = exponent < LOWEST ? LOWEST : exponent;
    return fabs((double)value - exact) / ldexp(1, exponent - DIGITS);
}

/* Checks the largest error of function on [low, high], over every 1009th float. */
static void check_sweep(void (*function)(Real *, const Real *), double (*exact)(double), double low,
                        double high, double bound)
{
    static Real x[BATCH], out[BATCH];
    const uint32_t step = 1009;
    int64_t checked = 0;
    for (uint64_t bits = 0; bits <= UINT32_MAX;) {
        int count = 0;
        for (; count < BATCH && bits <= UINT32_MAX; bits += step) {
            uint32_t low_bits = (uint32_t)bits;
            float value;
            memcpy(&value, &low_bits, sizeof value);
            if ((double)value >= low && (double)value <= high)
                x[count++] = value;
        }
        function(out, x);
        for (int i = 0; i < count; i++) {
            double error = units(out[i], exact((double)x[i]));
            if (!(error <= bound))
                ck_abort_msg("of %a: %a is %g units off", (double)x[i], (double)out[i], error);
        }
        checked += count;
    }
    ck_assert_int_gt(checked, 500000);
}

TEST(exp_is_accurate)
{
    check_sweep(sweep_exp, exp, -86.98, INFINITY, 1.1);
}

TEST(expm1_is_accurate)
{
    check_sweep(sweep_expm1, expm1, -INFINITY, INFINITY, 1.7);
}

TEST(tanh_is_accurate)
{
    check_sweep(sweep_tanh, tanh, -INFINITY, INFINITY, 2.6);
}

TEST(sigmoid_is_accurate)
{
    check_sweep(sweep_sigmoid, sigmoid, -86.98, INFINITY, 2.6);
}

TEST(log_is_accurate)
{
    check_sweep(sweep_log, log, 0, INFINITY, 1);
}

TEST(log1p_is_accurate)
{
    check_sweep(sweep_log1p, log1p, 0, 3e38, 1.5);
}

TEST(sine_and_cosine_are_accurate)
{
    check_sweep(sweep_near_sin, sin, -1e5, 1e5, 1.6);
    check_sweep(sweep_near_cos, cos, -1e5, 1e5, 1.6);
    check_sweep(sweep_sin, sin, -3e38, 3e38, 1.6);
    check_sweep(sweep_cos, cos, -3e38, 3e38, 1.6);
    ck_assert(isnan(real_sin(INFINITY)) && isnan(real_cos(-INFINITY)));
    ck_assert(signbit(real_sin(-(Real)0)) && !signbit(real_sin(0)) && real_cos(0) == 1);
}

static double power(double x)
{
    return pow(x, (double)constant);
}

TEST(power_is_accurate)
{
    const Real exponents[] = { (Real)1.75, -(Real)0.5, (Real)0.1, 3, -7, 100, -(Real)1e-3 };
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        constant = exponents[i];
        check_sweep(sweep_power, power, 0, INFINITY, 0.54);
    }
}

TEST(power_of_special_values_is_that_of_libm)
{
    const Real values[] = { 0,           1,         2,          3,        (Real)0.5,
                            (Real)1e-40, (Real)2.5, (Real)1e30, 16777216, INFINITY };
    enum { COUNT = 2 * sizeof values / sizeof *values };
    for (int i = 0; i < COUNT * COUNT; i++) {
        const Real x = i % 2 ? -values[i % COUNT / 2] : values[i % COUNT / 2];
        const Real c = i / COUNT % 2 ? -values[i / COUNT / 2] : values[i / COUNT / 2];
        const Real value = real_pow(x, c), exact = (Real)pow((double)x, (double)c);
        if (!(isnan(exact)
                  ? isnan(value)
                  : units(value, (double)exact) <= 1 && !signbit(value) == !signbit(exact)))
            ck_abort_msg("%g^%g is %g, expected %g", (double)x, (double)c, (double)value,
                         (double)exact);
    }
    ck_assert(real_pow(NAN, 0) == 1 && isnan(real_pow(NAN, 2)) && isnan(real_pow(2, NAN)));
}

static double distribution(double x)
{
    return erfc(x / -sqrt(2)) / 2;
}
static double density(double x)
{
    return exp(-x * x / 2) / sqrt(2 * acos(-1));
}

/* The negative tail keeps its digits: e^-86.98 at -13.18. */
TEST(normal_distribution_is_accurate)
{
    check_sweep(sweep_distribution, distribution, -13.1, INFINITY, sizeof(Real) == 4 ? 9 : 400);
    check_sweep(sweep_density, density, -13.1, 13.1, 3);
}

/* The neighborhood of exp's overflow and underflow. */
TEST(exp_at_its_edges)
{
#ifndef TAPEGRAD_DOUBLE
    ck_assert_float_infinite(real_exp(0x1.62e430p+6f));
    ck_assert_float_finite(real_exp(0x1.62e42ep+6f));
    for (float x = -86.5f; x > -90; x = nextafterf(x, -INFINITY)) {
        float y = real_exp(x);
        bool right = x < -87 ? y == 0 : x > -86.98f ? y >= 0x1p-126f : y == 0 || y >= 0x1p-126f;
        if (!right)
            ck_abort_msg("e^%a is %a", (double)x, (double)y);
    }
#endif
    ck_assert(real_exp(-INFINITY) == 0 && real_exp(-1000) == 0);
    ck_assert(isinf(real_exp(1000)) && isinf(real_exp(INFINITY)));
}

TEST(functions_have_their_limits)
{
    ck_assert(real_exp(0) == 1 && real_expm1(0) == 0 && real_tanh(0) == 0);
    ck_assert(real_sigmoid(0) == (Real)0.5 && real_log(1) == 0 && real_log1p(0) == 0);
    ck_assert(real_expm1(-INFINITY) == -1 && isinf(real_expm1(INFINITY)));
    ck_assert(real_tanh(INFINITY) == 1 && real_tanh(-INFINITY) == -1);
    ck_assert(real_sigmoid(INFINITY) == 1 && real_sigmoid(-INFINITY) == 0);
    ck_assert(real_distribution(0) == (Real)0.5);
    ck_assert(real_distribution(INFINITY) == 1 && real_distribution(-INFINITY) == 0);
    ck_assert(real_density(INFINITY) == 0 && real_density(-INFINITY) == 0);
    ck_assert(real_log(0) == -INFINITY && real_log(INFINITY) == INFINITY);
    ck_assert(isnan(real_log(-1)) && isnan(real_log(-INFINITY)));
}

/* A NaN of any payload and sign propagates. */
TEST(functions_carry_nan)
{
    for (int pattern = 0; pattern < 64; pattern++) {
        uint32_t bits = 0x7fc00000 | (uint32_t)(pattern & 1) << 31 | 0x1fffffu >> (pattern % 22);
        float nan;
        memcpy(&nan, &bits, sizeof nan);
        Real x[BATCH], out[BATCH];
        for (int i = 0; i < BATCH; i++)
            x[i] = nan;
        void (*const functions[])(
            Real *, const Real *) = { sweep_exp, sweep_expm1, sweep_tanh,         sweep_sigmoid,
                                      sweep_log, sweep_log1p, sweep_distribution, sweep_density,
                                      sweep_sin, sweep_cos,   sweep_near_sin,     sweep_near_cos };
        for (size_t f = 0; f < sizeof functions / sizeof *functions; f++) {
            functions[f](out, x);
            for (int i = 0; i < BATCH; i++)
                if (!isnan(out[i]))
                    ck_abort_msg("function %zu of %08x is %g", f, bits, (double)out[i]);
        }
    }
}

int main(void)
{
    return test_main("math", NULL, NULL);
}
