/* Mixtures of discretized logistic distributions: their loss, and pixels drawn from them. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
}

/* ----------------------------------------------------------------------------------------- loss */

/* -ln P of the mixture at each of the 256 values */
static Real *surprises(const Real *parameters, int64_t count)
{
    Real *out = test_normal(0, 256);
    begin();
    for (int32_t value = 0; value < 256; value++, tape_reset(tape)) {
        Tensor *target = tape_input_i32(tape, &value, shape(1));
        Tensor *x = tape_input(tape, parameters, shape(1, count));
        out[value] = (Real)tensor_item(op_discretized_logistic_mixture(tape, x, target));
    }
    tape_free(tape);
    return out;
}

TEST(probabilities_of_a_logistic_mixture)
{
    const Real mixtures[][6] = { { 0, 1, (Real)-0.5, (Real)0.3, -2, -3 },
                                 { 2, 0, -1, 3, -1, 0 },
                                 { 0, 0, (Real)0.2, (Real)-0.9, -5, (Real)-3.5 },
                                 { 0, -1, 0, 1, 2, 4 } };
    for (int i = 0; i < 4; i++) {
        const Real *m = mixtures[i], *l = surprises(m, 6);
        double sum = 0;
        for (int p = 0; p < 256; p++) {
            double x = 2 * p / 255.0 - 1, exact = 0;
            for (int k = 0; k < 2; k++) {
                double r = exp(-(double)m[4 + k]), d = x - (double)m[2 + k];
                double above = p == 255 ? 1 : 1 / (1 + exp(-r * (d + 1 / 255.0)));
                double below = p == 0 ? 0 : 1 / (1 + exp(-r * (d - 1 / 255.0)));
                exact += (above - below) / (1 + exp((double)(m[1 - k] - m[k])));
            }
            sum += exp(-(double)l[p]);
            ck_assert_double_le(fabs(exp(-(double)l[p]) - exact), 1e-5 + 1e-4 * exact);
        }
        ck_assert_double_le(fabs(sum - 1), 1e-3);
    }
}

/* No exponential's overflow or underflow shows, even where all components are out of reach; log
 * scales below -7 are clamped to -7. */
TEST(extremes_of_the_logistic_mixture)
{
    static const Real means[] = { -10000, -1, (Real)0.1, 1, 10000 }, scales[] = { -50, -7, 0, 50 };
    static const int32_t values[] = { 0, 1, 128, 254, 255 };
    enum { R = 5 * 4 * 5, K = 2 };
    Real parameters[R * 3 * K];
    int32_t targets[R];
    for (int r = 0; r < R; r++) {
        Real *p = parameters + r * 3 * K;
        targets[r] = values[r % 5];
        p[0] = p[1] = 0;
        p[2] = means[r / 5 % 5];
        p[3] = r % 2 ? p[2] : 2 * p[2];
        p[4] = p[5] = scales[r / 25];
    }
    begin();
    Tensor *x = tape_variable(tape, parameters, shape(R, 3 * K));
    Tensor *loss =
        op_discretized_logistic_mixture(tape, x, tape_input_i32(tape, targets, shape(R)));
    tape_backward(tape, loss);
    ck_assert(isfinite(tensor_item(loss)) && tensor_item(loss) > 0);
    Real *dx = test_values(tensor_gradient(x));
    for (int i = 0; i < R * 3 * K; i++)
        ck_assert_msg(isfinite(dx[i]), "gradient %d is %g", i, (double)dx[i]);
    for (int r = 0; r < 25; r++)
        ck_assert(dx[r * 3 * K + 4] == 0 && dx[r * 3 * K + 5] == 0);
    tape_free(tape);
    const Real low[] = { 0, (Real)0.1, -50 }, lowest[] = { 0, (Real)0.1, -7 };
    ck_assert_mem_eq(surprises(low, 3), surprises(lowest, 3), 256 * sizeof(Real));
}

/* Only differences of logits count: a common offset, or components that all are far from the pixel,
 * cost no digits of loss and gradient. */
TEST(mixtures_of_large_logits)
{
    enum { K = 3, R = 3 };
    static const Real offsets[] = { 1e6, -1e6, 0 };
    Real parameters[R * 3 * K];
    const int32_t targets[R] = { 100, 100, 100 };
    for (int r = 0; r < R; r++)
        for (int k = 0; k < K; k++) {
            Real *p = parameters + r * 3 * K + k;
            p[0] = offsets[r] + (Real)(k == 2);
            p[K] = r == 2 ? 1000 : (Real)0.1 * (Real)k;
            p[2 * K] = r == 2 ? -7 : -2;
        }
    begin();
    Tensor *x = tape_variable(tape, parameters, shape(R, 3 * K));
    Tensor *loss =
        op_discretized_logistic_mixture(tape, x, tape_input_i32(tape, targets, shape(R)));
    tape_backward(tape, loss);
    const Real *dx = test_values(tensor_gradient(x));
    for (int r = 0; r < R; r++) {
        double sum = 0;
        for (int k = 0; k < K; k++)
            sum += (double)dx[r * 3 * K + k];
        ck_assert_msg(fabs(sum) <= 1e-6, "row %d: priors - posteriors add up to %g", r, sum);
    }
    for (int i = 0; i < 2 * K; i++) /* rows 0 and 1 differ by their offsets */
        ck_assert_double_eq_tol((double)dx[i], (double)dx[3 * K + i], 1e-7);
    tape_reset(tape);
    Real losses[R];
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < K; k++)
            parameters[k] = offsets[r ? 2 : 0] + (Real)(k == 2);
        losses[r] = (Real)tensor_item(
            op_discretized_logistic_mixture(tape, tape_input(tape, parameters, shape(1, 3 * K)),
                                            tape_input_i32(tape, targets, shape(1))));
    }
    ck_assert_double_eq_tol((double)losses[0], (double)losses[1], 1e-6);
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- pixels */

/* The same row, `times` times. */
static Real *repeated(const Real *row, int64_t count, int64_t times)
{
    Real *rows = test_normal(0, count * times);
    for (int64_t i = 0; i < times; i++)
        memcpy(rows + i * count, row, (size_t)count * sizeof *row);
    return rows;
}

TEST(pixels_follow_their_probabilities)
{
    static const Real mixtures[][9] = {
        { 0, 1, (Real)-0.5, (Real)-0.8, (Real)0.1, (Real)0.6, -3, -2, -4 },
        { 0, 0, 0, -1, 1, (Real)0.4, -1, -3, 1 },
        { 0, 0, -3, 0, (Real)0.5, (Real)-0.5, -7, -9, (Real)-4.5 },
    };
    enum { DRAWS = 8192 };
    for (int m = 0; m < 3; m++) {
        const Real *p = mixtures[m], *rows = repeated(p, 9, DRAWS);
        begin();
        tape_seed(tape, 12);
        Tensor *out = op_sample_logistic_mixture(tape, tape_input(tape, rows, shape(DRAWS, 9)));
        const int32_t *pixels = test_integers(out);
        int64_t counts[256] = { 0 };
        double probability[256];
        for (int r = 0; r < DRAWS; r++) {
            ck_assert(pixels[r] >= 0 && pixels[r] < 256);
            counts[pixels[r]]++;
        }
        for (int32_t pixel = 0; pixel < 256; pixel++, tape_reset(tape)) {
            Tensor *loss = op_discretized_logistic_mixture(tape, tape_input(tape, p, shape(1, 9)),
                                                           tape_input_i32(tape, &pixel, shape(1)));
            probability[pixel] = exp(-tensor_item(loss));
        }
        assert_counts(counts, probability, 256, DRAWS);
        tape_free(tape);
    }
}

/* Any parameters give a valid pixel. */
TEST(pixels_of_extreme_mixtures)
{
    const Real infinite = (Real)INFINITY, nan = (Real)NAN;
    const Real rows[][3] = { { 0, 10000, -50 },   { 0, -10000, 2 },      { 0, 0, 10000 },
                             { 0, nan, 0 },       { nan, 0, nan },       { -infinite, 1, -7 },
                             { 0, infinite, 0 },  { 0, 0, infinite },    { 0, -infinite, infinite },
                             { 0, 0, -infinite }, { 0, (Real)1e38, 50 }, { 0, (Real)-1e38, -50 } };
    enum { R = sizeof rows / sizeof *rows };
    begin();
    for (int times = 0; times < 50; times++, tape_reset(tape)) {
        Tensor *x = tape_input(tape, rows[0], shape(R, 3));
        const int32_t *pixels = test_integers(op_sample_logistic_mixture(tape, x));
        for (int r = 0; r < R; r++)
            ck_assert(pixels[r] >= 0 && pixels[r] < 256);
        ck_assert(pixels[0] == 255 && pixels[1] == 0);
        ck_assert(pixels[2] == 0 || pixels[2] == 255);
        ck_assert(pixels[10] == 255 && pixels[11] == 0);
    }
    tape_free(tape);
}

/* Bitwise, with parameters in the dtype of this precision, against float32 on the CPU. */
static void compare_pixels(Precision precision, int64_t R, int64_t C)
{
    Tape *on_cpu = tape_new(device_open("cpu")), *on_device = tape_new(test_device());
    tape_set_precision(on_device, precision);
    const TensorType type = precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Real *values = test_normal((uint64_t)C, R * C);
    for (int64_t i = 0; i < R * C; i++)
        values[i] *= 4;
    Tensor *x = op_cast(on_device, tape_input(on_device, values, shape(R, C)), type);
    Tensor *same = tape_input(on_cpu, test_values(x), shape(R, C));
    for (int times = 0; times < 2; times++)
        ck_assert_mem_eq(test_integers(op_sample_logistic_mixture(on_cpu, same)),
                         test_integers(op_sample_logistic_mixture(on_device, x)),
                         (size_t)R * sizeof(int32_t));
    ck_assert_uint_eq(tape_random(on_cpu).counter, 2 * (uint64_t)R);
    ck_assert_uint_eq(tape_random(on_device).counter, 2 * (uint64_t)R);
    tape_free(on_cpu);
    tape_free(on_device);
}

TEST(every_device_and_dtype_draws_the_same)
{
    for (int bf16 = 0; bf16 < (test_has_bf16() ? 2 : 1); bf16++) {
        const Precision precision = bf16 ? PRECISION_BF16 : PRECISION_FLOAT32;
        compare_pixels(precision, 300, 30);
        compare_pixels(precision, 2, 3081);
    }
}

/* Pixels that depend on no build, compiler or processor. */
TEST(pixels_are_the_same_everywhere)
{
    enum { R = 500 };
    Real *rows = test_normal(0, R * 6);
    for (int i = 0; i < R * 6; i++)
        rows[i] = (Real)(i * 37 % 1009 - 500) / (i % 6 < 4 ? 512 : 128);
    begin();
    tape_seed(tape, 22);
    const int32_t *pixels =
        test_integers(op_sample_logistic_mixture(tape, tape_input(tape, rows, shape(R, 6))));
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (int i = 0; i < R; i++)
        hash = (hash ^ (uint64_t)pixels[i]) * 0x100000001B3u;
    ck_assert_msg(hash == 0x67C504955BF43FE6u, "the pixels are others: 0x%016llX",
                  (unsigned long long)hash);
    tape_free(tape);
}

typedef struct Sampled {
    Tape *tape;
    Tensor *parameters, *pixels;
} Sampled;

enum { MIXTURES = 7 };

static void sample_step(void *context)
{
    Sampled *sampled = context;
    sampled->pixels = op_sample_logistic_mixture(sampled->tape, sampled->parameters);
}

TEST(replayed_steps_draw_the_same)
{
    Sampled both[2];
    for (int i = 0; i < 2; i++) {
        both[i] = (Sampled){ .tape = tape_new(test_device()) };
        tape_seed(both[i].tape, 8);
        both[i].parameters = tape_persistent(both[i].tape, shape(MIXTURES, 12));
    }
    for (int step = 0; step < 5; step++) {
        for (int i = 0; i < 2; i++)
            tensor_write(both[i].parameters, test_normal((uint64_t)step, MIXTURES * 12));
        tape_reset(both[0].tape);
        sample_step(&both[0]);
        tape_replay(both[1].tape, sample_step, &both[1]);
        ck_assert_mem_eq(test_integers(both[0].pixels), test_integers(both[1].pixels),
                         MIXTURES * sizeof(int32_t));
    }
    for (int i = 0; i < 2; i++)
        tape_free(both[i].tape);
}

/* After an error the Philox counter is back at the start of the step. */
static Tensor *sample_of_mixture(Tape *on)
{
    return op_sample_logistic_mixture(on, tape_input(on, test_normal(1, 54), shape(6, 9)));
}

TEST(recovery_from_exhausted_memory)
{
    assert_draws_recover(sample_of_mixture, 6);
}

TEST(misuse_raises)
{
    begin();
    const int32_t valid[] = { 0, 4, 2 };
    Tensor *x = tape_input(tape, test_normal(1, 15), shape(3, 5));
    Tensor *t = tape_input_i32(tape, valid, shape(3));
    const int32_t pixels[] = { 0, 255, 256 }, negative[] = { 0, -1, 256 };
    Tensor *mixtures = tape_input(tape, test_normal(1, 18), shape(3, 6));
    assert_raises(
        "op_discretized_logistic_mixture: targets[2] is 256, expected 0 to 255, the values of a "
        "pixel",
        op_discretized_logistic_mixture(tape, mixtures, tape_input_i32(tape, pixels, shape(3))));
    assert_raises(
        "op_discretized_logistic_mixture: targets[1] is -1, expected 0 to 255, the values of a "
        "pixel",
        op_discretized_logistic_mixture(tape, mixtures, tape_input_i32(tape, negative, shape(3))));
    assert_raises("op_discretized_logistic_mixture: parameters is [3,5], expected [..., 3 K]: the "
                  "logits, the means and the logarithms of the scales of K distributions",
                  op_discretized_logistic_mixture(tape, x, t));
    assert_raises(
        "op_discretized_logistic_mixture: targets is [1,3], expected [3]: parameters is "
        "[3,6]",
        op_discretized_logistic_mixture(tape, mixtures, tape_input_i32(tape, valid, shape(1, 3))));
    assert_raises("op_discretized_logistic_mixture: targets is NULL",
                  op_discretized_logistic_mixture(tape, mixtures, NULL));
    assert_raises("op_sample_logistic_mixture: parameters is NULL",
                  op_sample_logistic_mixture(tape, NULL));
    assert_raises("op_sample_logistic_mixture: parameters is [3,5], expected [..., 3 K]: the "
                  "logits, the means and the logarithms of the scales of K distributions",
                  op_sample_logistic_mixture(tape, x));
    ck_assert(!op_sample_logistic_mixture(tape, mixtures)->requires_grad);
    tape_free(tape);
}

int main(void)
{
    return test_main("mixture", NULL, NULL);
}
