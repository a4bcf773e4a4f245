/* Sampling: op_sample and op_random_normal. */
#include "ext/sampling/kernels.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;

static void begin(void)
{
    tape = tape_new(test_device());
    tape_set_recording(tape, false);
}

/* The choices of op_sample for rows [R, C], on a tape of its own with this seed. */
static int32_t *sampled(Device *device, const Real *logits, int64_t R, int64_t C, Sampling sampling,
                        uint64_t seed)
{
    Tape *own = tape_new(device);
    tape_seed(own, seed);
    Tensor *x = tape_input(own, logits, shape(R, C));
    int32_t *symbols = test_integers(op_sample(own, x, sampling));
    tape_free(own);
    return symbols;
}

/* ----------------------------------------------------------------- against an oracle that sorts */
typedef struct Symbol {
    Real logit;
    int64_t index;
} Symbol;

/* By logit, the largest first; then by index. */
static int compare_symbols(const void *left, const void *right)
{
    const Symbol *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->index < b->index ? -1 : 1;
}

__extension__ typedef unsigned __int128 Wide;

/* The sum of the symbols' fixed-point softmax weights, relative to the largest logit. */
static uint64_t sum_of_weights(const Symbol *symbols, int64_t count, Real temperature)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += symbol_weight(symbols[i].logit, symbols[0].logit, temperature);
    return sum;
}

static int compare_indices(const void *left, const void *right)
{
    const Symbol *a = left, *b = right;
    return a->index < b->index ? -1 : 1;
}

/* The symbols' logits are numbers above minus infinity, in any order. */
static int32_t choose(Symbol *symbols, int64_t count, Sampling sampling, uint64_t uniform)
{
    const bool greedy = sampling.temperature == 0;
    const Real temperature = greedy ? 1 : (Real)sampling.temperature;
    qsort(symbols, (size_t)count, sizeof *symbols, compare_symbols);
    const Symbol largest = symbols[0];
    if (greedy)
        return (int32_t)largest.index;
    if (sampling.top_k > 0 && sampling.top_k < count)
        count = sampling.top_k;
    if (sampling.top_p > 0 && sampling.top_p < 1) {
        const uint64_t p = (uint64_t)(sampling.top_p * 0x1p64);
        const uint64_t total = sum_of_weights(symbols, count, temperature);
        uint64_t sum = sum_of_weights(symbols, 1, temperature);
        int64_t kept = 1;
        for (; (Wide)sum << 64 < (Wide)total * p; kept++)
            sum += symbol_weight(symbols[kept].logit, largest.logit, temperature);
        count = kept;
    }
    const uint64_t limit =
        (uint64_t)((Wide)sum_of_weights(symbols, count, temperature) * uniform >> 64);
    qsort(symbols, (size_t)count, sizeof *symbols, compare_indices);
    uint64_t sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += symbol_weight(symbols[i].logit, largest.logit, temperature);
        if (sum > limit)
            return (int32_t)symbols[i].index;
    }
    ck_abort_msg("no symbol was chosen");
}

static void check_against_sorting(const Real *logits, int64_t R, int64_t C, Sampling sampling)
{
    const int32_t *actual = sampled(test_device(), logits, R, C, sampling, 5);
    begin();
    tape_seed(tape, 5);
    const Random random = tape_random(tape);
    tape_free(tape);
    Symbol *symbols = malloc((size_t)C * sizeof *symbols);
    for (int64_t r = 0; r < R; r++) {
        int64_t count = 0;
        for (int64_t c = 0; c < C; c++)
            if (logits[r * C + c] > -(Real)INFINITY)
                symbols[count++] = (Symbol){ logits[r * C + c], c };
        const Philox draw = philox(random.seed, random.stream, random.counter + (uint64_t)r);
        const uint64_t uniform = (uint64_t)draw.word[1] << 32 | draw.word[0];
        const int32_t expected = count ? choose(symbols, count, sampling, uniform) : 0;
        ck_assert_msg(actual[r] == expected,
                      "row %d of %d symbols, temperature %g, top_k %d, top_p %g: "
                      "%d was chosen, expected %d",
                      (int)r, (int)C, sampling.temperature, (int)sampling.top_k, sampling.top_p,
                      (int)actual[r], (int)expected);
    }
    free(symbols);
}

static const Sampling samplings[] = {
    { .temperature = 0 },
    { .temperature = 1 },
    { .temperature = 0.3 },
    { .temperature = 20 },
    { .temperature = 1, .top_k = 1 },
    { .temperature = 1, .top_k = 3 },
    { .top_k = 40, .temperature = 3 },
    { .temperature = 1, .top_p = 1e-30 },
    { .temperature = 1, .top_p = 0.5 },
    { .top_p = 0.9, .temperature = 4 },
    { .temperature = 1, .top_p = 1 },
    { .top_k = 7, .top_p = 0.8, .temperature = 2 },
    { .temperature = 1, .top_k = 100000, .top_p = 0.99 },
};
enum { SAMPLINGS = sizeof samplings / sizeof *samplings };

TEST(choices_are_those_of_sorting)
{
    static const int64_t sizes[] = { 1, 2, 5, 31, 32, 33, 100, 257, 1025, 1600 };
    for (int size = 0; size < 10; size++) {
        const int64_t C = sizes[size], R = C > 1000 ? 3 : 9;
        Real *logits = test_normal((uint64_t)C, R * C);
        for (int64_t i = 0; i < R * C; i++)
            logits[i] *= 3;
        for (int i = 0; i < SAMPLINGS; i++)
            check_against_sorting(logits, R, C, samplings[i]);
    }
}

/* Few distinct logits, zeros of both signs, and logits that cannot be chosen. */
TEST(ties_go_to_the_first)
{
    static const int64_t sizes[] = { 2, 7, 40, 300, 1100 };
    for (int size = 0; size < 5; size++) {
        const int64_t C = sizes[size], R = C > 1000 ? 3 : 12;
        Real *logits = test_normal((uint64_t)C, R * C);
        for (int64_t i = 0; i < R * C; i++) {
            logits[i] = (Real)(int)(2 * logits[i]) / (Real)(1 + i % 2);
            if (i % 5 == 1)
                logits[i] = i % 3 ? -(Real)INFINITY : (Real)NAN;
            else if (logits[i] == 0)
                logits[i] = i % 2 ? -(Real)0.0 : 0;
        }
        for (int i = 0; i < SAMPLINGS; i++)
            check_against_sorting(logits, R, C, samplings[i]);
    }
}

TEST(rows_without_an_ordinary_choice)
{
    const Real infinite = (Real)INFINITY, nan = (Real)NAN;
    const Real rows[][4] = { { -infinite, -infinite, -infinite, -infinite },
                             { nan, nan, nan, nan },
                             { nan, -infinite, nan, -infinite },
                             { -infinite, nan, (Real)-1e30, -infinite },
                             { 3, infinite, nan, (Real)1e30 },
                             { (Real)-3e38, (Real)3e38, (Real)-3e38, 0 } };
    static const int32_t expected[] = { 0, 0, 0, 2, 1, 1 };
    for (int i = 0; i < SAMPLINGS; i++)
        for (int row = 0; row < 6; row++)
            ck_assert_int_eq(sampled(test_device(), rows[row], 1, 4, samplings[i], 3)[0],
                             expected[row]);
    const Real one[] = { 0, -100, -infinite }; /* the others have weight 0 */
    ck_assert_int_eq(sampled(test_device(), one, 1, 3,
                             (Sampling){ .temperature = 1, .top_p = 1 - 0x1p-53 }, 3)[0],
                     0);
    enum { R = 64 };
    Real both[R][3];
    for (int r = 0; r < R; r++)
        memcpy(both[r], (const Real[]){ infinite, 5, infinite }, sizeof both[r]);
    const int32_t *symbols =
        sampled(test_device(), both[0], R, 3, (Sampling){ .temperature = 1 }, 3);
    int seconds = 0;
    for (int r = 0; r < R; r++) {
        ck_assert_int_ne(symbols[r], 1);
        seconds += symbols[r] == 2;
    }
    ck_assert(seconds > R / 4 && seconds < R * 3 / 4);
}

/* -------------------------------------------------------------------------------- distributions */

/* The same row, `times` times. */
static Real *repeated(const Real *row, int64_t count, int64_t times)
{
    Real *rows = test_normal(0, count * times);
    for (int64_t i = 0; i < times; i++)
        memcpy(rows + i * count, row, (size_t)count * sizeof *row);
    return rows;
}

enum { DRAWS = 8192 };

TEST(symbols_follow_their_probabilities)
{
    enum { C = 19 };
    const Real *logits = test_normal(4, C), *rows = repeated(logits, C, DRAWS);
    static const Real temperatures[] = { 1, (Real)0.5, 5 };
    for (int i = 0; i < 3; i++) {
        const Sampling sampling = { .temperature = temperatures[i] };
        const int32_t *symbols = sampled(test_device(), rows, DRAWS, C, sampling, 11);
        int64_t counts[C] = { 0 };
        double probability[C], sum = 0;
        for (int c = 0; c < C; c++)
            sum += probability[c] = exp((double)(logits[c] / temperatures[i]));
        for (int c = 0; c < C; c++)
            probability[c] /= sum;
        for (int r = 0; r < DRAWS; r++)
            counts[symbols[r]]++;
        assert_counts(counts, probability, C, DRAWS);
    }
}

/* ---------------------------------------------------------------------------- seeds and devices */
TEST(a_seed_repeats_its_choices)
{
    enum { R = 50, C = 40 };
    const Real *logits = test_normal(1, R * C);
    const int32_t *first = sampled(test_device(), logits, R, C, (Sampling){ .temperature = 1 }, 1);
    const int32_t *again = sampled(test_device(), logits, R, C, (Sampling){ .temperature = 1 }, 1);
    const int32_t *other = sampled(test_device(), logits, R, C, (Sampling){ .temperature = 1 }, 2);
    ck_assert_mem_eq(first, again, R * sizeof *first);
    ck_assert_mem_ne(first, other, R * sizeof *first);
    begin();
    tape_seed(tape, 1);
    Tensor *x = tape_input(tape, logits, shape(5, 2, R / 10, C));
    Tensor *out = op_sample(tape, x, (Sampling){ .temperature = 1 });
    ck_assert(shape_equal(out->shape, shape(5, 2, R / 10)) && out->type == TENSOR_INT32);
    ck_assert_mem_eq(first, test_integers(out), R * sizeof *first);
    ck_assert_uint_eq(tape_random(tape).counter, R);
    ck_assert_mem_ne(first, test_integers(op_sample(tape, x, (Sampling){ .temperature = 1 })),
                     R * sizeof *first);
    ck_assert_uint_eq(tape_random(tape).counter, 2 * R);
    op_sample(tape, x, (Sampling){ .temperature = 0 });
    ck_assert_uint_eq(tape_random(tape).counter, 2 * R);
    tape_free(tape);
}

/* Bitwise, with logits in the dtype of this precision, against float32 on the CPU. */
static void compare_choices(Precision precision, int64_t R, int64_t C)
{
    Tape *on_cpu = tape_new(device_open("cpu")), *on_device = tape_new(test_device());
    tape_set_precision(on_device, precision);
    const TensorType type = precision == PRECISION_BF16 ? TENSOR_BF16 : TENSOR_REAL;
    Real *logits = test_normal((uint64_t)C, R * C);
    for (int64_t i = 0; i < R * C; i++)
        logits[i] *= 4;
    Tensor *device_logits = op_cast(on_device, tape_input(on_device, logits, shape(R, C)), type);
    Tensor *cpu_logits = tape_input(on_cpu, test_values(device_logits), shape(R, C));
    for (int i = 0; i < SAMPLINGS; i++)
        ck_assert_mem_eq(test_integers(op_sample(on_cpu, cpu_logits, samplings[i])),
                         test_integers(op_sample(on_device, device_logits, samplings[i])),
                         (size_t)R * sizeof(int32_t));
    ck_assert_uint_eq(tape_random(on_cpu).counter, tape_random(on_device).counter);
    tape_free(on_cpu);
    tape_free(on_device);
}

TEST(every_device_and_dtype_chooses_the_same)
{
    for (int bf16 = 0; bf16 < (test_has_bf16() ? 2 : 1); bf16++) {
        const Precision precision = bf16 ? PRECISION_BF16 : PRECISION_FLOAT32;
        compare_choices(precision, 300, 30);
        compare_choices(precision, 3, 100);
        compare_choices(precision, 2, 3081);
    }
}

/* Choices that depend on no build, compiler or processor. */
TEST(choices_are_the_same_everywhere)
{
    enum { R = 500, C = 70 };
    Real *rows = test_normal(0, R * C);
    for (int i = 0; i < R * C; i++)
        rows[i] = (Real)(i * 37 % 1009 - 500) / 128;
    const int32_t *symbols =
        sampled(test_device(), rows, R, C, (Sampling){ .temperature = 1, .top_p = 0.75 }, 21);
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a */
    for (int i = 0; i < R; i++)
        hash = (hash ^ (uint64_t)symbols[i]) * 0x100000001B3u;
    ck_assert_msg(hash == 0x9B4459950E5FD80Fu, "the choices are others: 0x%016llX",
                  (unsigned long long)hash);
}

/* ---------------------------------------------------------------------------------- on the tape */

/* A Markov chain: a symbol selects a row of the weight as logits of the next symbol. */
typedef struct Chain {
    Tape *tape;
    Tensor *logits, *weight, *symbols[3];
} Chain;

enum { CHAINS = 7, SYMBOLS = 12 };

static Chain chain_new(void)
{
    Chain chain = { .tape = tape_new(test_device()) };
    tape_set_recording(chain.tape, false);
    tape_seed(chain.tape, 8);
    chain.logits = tape_persistent(chain.tape, shape(CHAINS, SYMBOLS));
    chain.weight = tape_persistent(chain.tape, shape(SYMBOLS, SYMBOLS));
    tensor_write(chain.weight, test_normal(1, SYMBOLS * SYMBOLS));
    return chain;
}

static void chain_step(void *context)
{
    Chain *chain = context;
    Tensor *logits = chain->logits;
    for (int i = 0; i < 3; i++) {
        const Sampling sampling = { .temperature = 1,
                                    .top_k = i == 1 ? 4 : 0,
                                    .top_p = i == 2 ? 0.75 : 0 };
        chain->symbols[i] = op_sample(chain->tape, logits, sampling);
        logits = op_embedding(chain->tape, chain->weight, chain->symbols[i]);
    }
}

TEST(replayed_steps_choose_the_same)
{
    Chain eager = chain_new(), replayed = chain_new();
    for (int step = 0; step < 5; step++) {
        const Real *logits = test_normal((uint64_t)step, CHAINS * SYMBOLS);
        tensor_write(eager.logits, logits);
        tensor_write(replayed.logits, logits);
        tape_reset(eager.tape);
        chain_step(&eager);
        tape_replay(replayed.tape, chain_step, &replayed);
        for (int i = 0; i < 3; i++)
            ck_assert_mem_eq(test_integers(eager.symbols[i]), test_integers(replayed.symbols[i]),
                             CHAINS * sizeof(int32_t));
    }
    ck_assert_uint_eq(tape_random(eager.tape).counter, tape_random(replayed.tape).counter);
    tape_free(eager.tape);
    tape_free(replayed.tape);
}

/* --------------------------------------------------------------------------------- normal noise */
TEST(normal_noise_is_random_normal_of_the_tapes_generator)
{
    const Shape shapes[] = { shape(1), shape(7), shape(3, 5, 7, 2), shape(4000), shape_scalar() };
    begin();
    tape_seed(tape, 17);
    uint64_t counter = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const int64_t n = shape_count(shapes[i]);
        Random random = tape_random(tape);
        Real *expected = test_zeros(n);
        random_normal(&random, expected, n);
        Tensor *out = op_random_normal(tape, shapes[i]);
        ck_assert(shape_equal(out->shape, shapes[i]) && out->type == TENSOR_REAL);
        ck_assert(!out->requires_grad);
        counter += (uint64_t)(n + 3) / 4;
        ck_assert_uint_eq(tape_random(tape).counter, counter);
        if (device_is_cuda(test_device()))
            assert_close(test_values(out), expected, n, VECTOR_TOLERANCE);
        else
            assert_identical(test_values(out), expected, n);
    }
    tape_free(tape);
}

/* A variational autoencoder: z = mean + e^(log_variance / 2) noise. */
typedef struct Autoencoder {
    Params *params;
    Tape *tape;
    Linear encoder, decoder;
    Optimizer *optimizer;
    Tensor *x;
    bool recomputes;
} Autoencoder;

enum { ITEMS = 6, FEATURES = 5, LATENT = 3 };

static Autoencoder autoencoder_new(bool recomputes)
{
    Autoencoder a = { params_new(test_device(), 3), tape_new(test_device()),
                      .recomputes = recomputes };
    a.encoder = nn_linear(a.params, "encoder", FEATURES, 2 * LATENT);
    a.decoder = nn_linear(a.params, "decoder", LATENT, FEATURES);
    a.optimizer = optim_adam(a.params, optim_adam_config(0.01));
    a.x = tape_persistent(a.tape, shape(ITEMS, FEATURES));
    tape_seed(a.tape, 6);
    return a;
}

static void autoencoder_free(Autoencoder a)
{
    optim_free(a.optimizer);
    tape_free(a.tape);
    params_free(a.params);
}

static Tensor *reconstruct(Tape *on, Tensor *x, const void *context)
{
    const Autoencoder *a = context;
    Tensor *half[2];
    op_split(on, nn_linear_forward(on, &a->encoder, x), -1, 2, half);
    Tensor *noise = op_random_normal(on, half[0]->shape);
    Tensor *deviation = op_exp(on, op_scale(on, half[1], 0.5));
    Tensor *z = op_add(on, half[0], op_multiply(on, deviation, noise));
    return nn_linear_forward(on, &a->decoder, z);
}

static void autoencoder_step(void *context)
{
    Autoencoder *a = context;
    Tensor *out = a->recomputes ? tape_recompute(a->tape, reconstruct, a->x, a, sizeof *a)
                                : reconstruct(a->tape, a->x, a);
    tape_backward(a->tape, op_mean_squared_error(a->tape, out, a->x));
    optim_step(a->optimizer);
}

TEST(noise_is_new_in_each_replayed_step_and_the_same_when_recomputed)
{
    Autoencoder eager = autoencoder_new(false), replayed = autoencoder_new(false);
    Autoencoder recomputed = autoencoder_new(true);
    for (int step = 0; step < 5; step++) {
        const Real *x = test_normal((uint64_t)step, ITEMS * FEATURES);
        tensor_write(eager.x, x);
        tensor_write(replayed.x, x);
        tensor_write(recomputed.x, x);
        tape_reset(eager.tape);
        autoencoder_step(&eager);
        tape_reset(recomputed.tape);
        autoencoder_step(&recomputed);
        tape_replay(replayed.tape, autoencoder_step, &replayed);
        assert_identical_weights(replayed.params, eager.params);
        assert_identical_weights(recomputed.params, eager.params);
        ck_assert_uint_eq(tape_random(eager.tape).counter, (uint64_t)(step + 1) * 5);
        ck_assert_uint_eq(tape_random(replayed.tape).counter, (uint64_t)(step + 1) * 5);
    }
    autoencoder_free(eager);
    autoencoder_free(replayed);
    autoencoder_free(recomputed);
}

static Tensor *sample_and_noise(Tape *on)
{
    Tensor *x = tape_input(on, test_normal(1, 54), shape(6, 9));
    Tensor *out = op_sample(on, x, (Sampling){ .temperature = 1, .top_k = 3 });
    op_random_normal(on, shape(6));
    return out;
}

TEST(recovery_from_exhausted_memory)
{
    assert_draws_recover(sample_and_noise, 6 + 2);
}

TEST(no_gradient_passes)
{
    begin();
    tape_set_recording(tape, true);
    Tensor *x = tape_variable(tape, test_normal(1, 12), shape(2, 6));
    Tensor *symbols = op_sample(tape, x, (Sampling){ .temperature = 1 });
    ck_assert(!symbols->requires_grad);
    tape_backward(tape, op_cross_entropy(tape, x, symbols, NULL));
    tape_free(tape);
}

TEST(misuse_raises)
{
    begin();
    Tensor *x = tape_input(tape, test_normal(1, 20), shape(4, 5));
    Tensor *scalar = tape_input(tape, test_normal(1, 1), shape_scalar());
    assert_raises("op_sample: logits is NULL",
                  op_sample(tape, NULL, (Sampling){ .temperature = 1 }));
    assert_raises("op_sample: logits is a scalar, expected one axis at least",
                  op_sample(tape, scalar, (Sampling){ .temperature = 1 }));
    assert_raises("op_sample: temperature is -1, expected 0 or more",
                  op_sample(tape, x, (Sampling){ .temperature = -1 }));
    assert_raises("op_sample: temperature is inf, expected 0 or more",
                  op_sample(tape, x, (Sampling){ .temperature = INFINITY }));
    assert_raises("op_sample: temperature is nan, expected 0 or more",
                  op_sample(tape, x, (Sampling){ .temperature = NAN }));
    assert_raises("op_sample: top_k is -2, expected 1 or more, or 0 for all",
                  op_sample(tape, x, (Sampling){ .top_k = -2 }));
    assert_raises("op_sample: top_p is 1.5, expected more than 0 and 1 at most, or 0 for all",
                  op_sample(tape, x, (Sampling){ .temperature = 1, .top_p = 1.5 }));
    assert_raises("op_sample: top_p is nan, expected more than 0 and 1 at most, or 0 for all",
                  op_sample(tape, x, (Sampling){ .temperature = 1, .top_p = NAN }));
    assert_raises("op_sample: logits has dtype int32, expected Real",
                  op_sample(tape, op_sample(tape, x, (Sampling){ .temperature = 1 }),
                            (Sampling){ .temperature = 1 }));
    assert_raises("shape: size 1 is 0, expected at least 1",
                  op_random_normal(tape, (Shape){ 2, { 3, 0 } }));
    tape_free(tape);
}

int main(void)
{
    return test_main("sampling", NULL, NULL);
}
