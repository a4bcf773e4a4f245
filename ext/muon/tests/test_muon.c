/* Muon against PyTorch, and in what it differs from other optimizers. */
#include "tests/optimizers.h"

#include <math.h>

enum { MUON_WEIGHTS = 4, MUON_STEPS = 4 };

/* Of PyTorch's Muon, with its AdamW for the bias; tests/data/muon.py writes the file. "query" and
 * "key" are joined, with the wide matrix's values in both; "cube" has the tall matrix's. */
static void follow_muon(const char *prefix, MuonConfig config)
{
    static const char *const names[] = { "wide", "tall", "square", "bias" };
    static const char *const parts[] = { "query", "key" };
    TensorFile *file = test_vector_file("muon.safetensors");
    Params *params = params_new(test_device(), 1);
    Tensor *weights[MUON_WEIGHTS + 2];
    const char *of[MUON_WEIGHTS + 2];
    params_add_joined(params, "a", parts, 2, "weight", shape(3, 7), normal);
    for (int i = 0; i < MUON_WEIGHTS; i++) {
        Shape size;
        test_entry(file, "start.", names[i], &size);
        weights[i] = params_add(params, names[i], size, normal);
        of[i] = names[i];
    }
    weights[4] = params_add(params, "cube", shape(9, 2, 2), normal);
    of[4] = "tall";
    weights[5] = params_find(params, "a.key.weight");
    of[5] = "wide";
    config.rest.weight_decay = 0.25;
    Optimizer *optimizer = optim_muon(params, config);
    for (int i = 0; i < MUON_WEIGHTS + 2; i++)
        tensor_write(weights[i], test_entry(file, "start.", of[i], NULL));
    for (int t = 0; t < MUON_STEPS; t++) {
        for (int i = 0; i < MUON_WEIGHTS + 2; i++)
            contribute(weights[i],
                       test_entry(file, "gradients.", of[i], NULL) + t * tensor_count(weights[i]));
        optim_step(optimizer);
        for (int i = 0; i < MUON_WEIGHTS + 2; i++) {
            const int64_t count = tensor_count(weights[i]);
            assert_close(test_values(weights[i]), test_entry(file, prefix, of[i], NULL) + t * count,
                         count, VECTOR_TOLERANCE);
        }
    }
    tensor_file_close(file);
    optim_free(optimizer);
    params_free(params);
}

TEST(muon_agrees_with_pytorch)
{
    MuonConfig config = optim_muon_config(0.02, 0.01);
    config.weight_decay = 0.125;
    follow_muon("original.", config);
    config = optim_muon_config(0.02, 0.01);
    config.momentum = 0.75;
    config.nesterov = false;
    config.iterations = 3;
    config.scale = MUON_MATCH_RMS_ADAMW;
    follow_muon("match_rms.", config);
}

/* The update of 32 rows and of 32 columns has singular values near 1: its products with itself are
 * near the unit matrix; those of the gradient, whose condition number is about 20, are not. */
TEST(muon_orthogonalizes_the_update)
{
    enum { N = 32, K = 48 };
    for (int tall = 0; tall < 2; tall++) {
        Params *params = params_new(test_device(), 1);
        Tensor *x = params_add(params, "x", tall ? shape(K, N) : shape(N, K), normal);
        MuonConfig config = optim_muon_config(1, 1);
        Optimizer *optimizer = optim_muon(params, config);
        const Real *before = test_values(x);
        contribute(x, test_normal(3, N * K));
        optim_step(optimizer);
        const Real *after = test_values(x);
        const double scale = tall ? sqrt((double)K / N) : 1;
        double trace = 0, square = 0;
        for (int i = 0; i < N; i++)
            for (int j = 0; j < N; j++) {
                double sum = 0;
                for (int k = 0; k < K; k++) {
                    const int a = tall ? k * N + i : i * K + k, b = tall ? k * N + j : j * K + k;
                    sum += (double)(before[a] - after[a]) * (double)(before[b] - after[b]);
                }
                sum /= scale * scale;
                trace += i == j ? sum : 0;
                square += sum * sum;
            }
        /* squares of the singular values: their mean and mean square */
        ck_assert_msg(fabs(trace / N - 1) < 0.3, "%g", trace / N);
        ck_assert_msg(square / N - trace * trace / N / N < 0.15, "%g", square / N);
        optim_free(optimizer);
        params_free(params);
    }
}

/* The same update for a gradient of any size: its norm is 48 here, and 48 size. */
TEST(muon_updates_by_tiny_gradients_as_by_others)
{
    enum { N = 48 };
    static Real updates[2][N * N];
    const double sizes[] = { 1e-3, 1e-10, 1e-20, 1e-28 };
    for (int i = 0; i < 4; i++) {
        Params *params = params_new(test_device(), 1);
        Tensor *x = params_add(params, "x", shape(N, N), (Initializer){ INITIAL_ZERO, 0 });
        Optimizer *optimizer = optim_muon(params, optim_muon_config(1, 1));
        Real *gradient = test_normal(3, N * N);
        for (int j = 0; j < N * N; j++)
            gradient[j] = (Real)(sizes[i] * (double)gradient[j]);
        contribute(x, gradient);
        optim_step(optimizer);
        tensor_read(x, updates[i > 0]);
        for (int j = 0; j < N * N; j++)
            ck_assert_msg(fabs((double)(updates[i > 0][j] - updates[0][j])) < 1e-3,
                          "size %g: element %d is %g, expected %g", sizes[i], j,
                          (double)updates[i > 0][j], (double)updates[0][j]);
        optim_free(optimizer);
        params_free(params);
    }
}

/* rest_names decide; the learning rate of the rest stays in proportion. */
TEST(muon_leaves_named_weights_to_adamw)
{
    static const char *const names[] = { "embedding.weight", "head.weight", "a.weight" };
    Params *params[3];
    Real *values[3][3];
    for (int run = 0; run < 3; run++) {
        params[run] = params_new(test_device(), 1);
        for (int i = 0; i < 3; i++)
            params_add(params[run], names[i], shape(4, 4), normal);
        MuonConfig config = optim_muon_config(0.5, 0.25);
        config.rest_names[0] = run == 1 ? NULL : config.rest_names[0];
        Optimizer *optimizer = run == 2 ? optim_adamw(params[2], optim_adam_config(0.25))
                                        : optim_muon(params[run], config);
        for (int t = 1; t <= 3; t++) {
            if (t == 3)
                optim_set_learning_rate(optimizer, run == 2 ? 0.5 : 1);
            for (int i = 0; i < 3; i++)
                contribute(params_at(params[run], i), test_normal((uint64_t)t, 16));
            optim_step(optimizer);
        }
        for (int i = 0; i < 3; i++)
            values[run][i] = test_values(params_at(params[run], i));
        optim_free(optimizer);
    }
    for (int i = 0; i < 2; i++) {
        assert_identical(values[0][i], values[2][i], 16);
        ck_assert_mem_ne(values[1][i], values[2][i], 16 * sizeof(Real));
    }
    assert_identical(values[0][2], values[1][2], 16);
    ck_assert_mem_ne(values[0][2], values[2][2], 16 * sizeof(Real));
    for (int run = 0; run < 3; run++)
        params_free(params[run]);
}

/* A product's workspace may be refused in the middle of a step. */
TEST(a_failed_step_of_muon_changes_nothing)
{
    static Real expected[COUNT], values[COUNT];
    run(kinds[MUON], NULL, 0, 0, expected);
    volatile int failures = 0;
    for (volatile int n = 1; n < 100; n++) {
        Pair pair = pair_new();
        Optimizer *optimizer = make(kinds[MUON], pair.params);
        for (volatile int t = 1; t <= STEPS; t++) {
            const Real *gradients = test_normal((uint64_t)t, COUNT);
            contribute(pair.first, gradients);
            contribute(pair.second, gradients + FIRST);
            test_expect_error();
            device_fail_allocation(t == 2 ? n : 0);
            if (!setjmp(test_error_jump))
                optim_step(optimizer);
            tapegrad_on_error(NULL, NULL);
            if (t == 2 && device_fail_allocation(0)) {
                assert_exhausted();
                ck_assert_msg(strncmp(tapegrad_error(), "optim_step: ", 12) == 0, "%s",
                              tapegrad_error());
                ck_assert_int_eq(optim_steps(optimizer), 1);
                optim_step(optimizer);
                failures++;
            } else if (t == 2) {
                n = 100;
            }
        }
        pair_read(pair, values);
        assert_identical(values, expected, COUNT);
        optim_free(optimizer);
        params_free(pair.params);
    }
    /* The products of plain kernels and of the emulation have no workspace. */
    ck_assert(failures > 0 || strcmp(device_name(test_device()), "cpu") != 0);
}

TEST(bad_configs_of_muon_raise)
{
    Params *params = params_new(test_device(), 1);
    params_add(params, "head.weight", shape(3, 3), normal);
    params_add(params, "bias", shape(3), normal);
    const MuonConfig good = optim_muon_config(0.5, 0.5);
    ck_assert(good.learning_rate == 0.5 && good.momentum == 0.95 && good.nesterov);
    ck_assert(good.iterations == 5 && good.weight_decay == 0 && good.scale == MUON_ORIGINAL);
    assert_raises("optim_muon: no weight is a matrix outside rest_names; use optim_adamw",
                  optim_muon(params, good));
    params_add(params, "weight", shape(3, 3), normal);
    MuonConfig config = good;
    config.learning_rate = 0;
    assert_raises("optim_muon: learning_rate is 0, expected more than 0, and finite; to train the "
                  "rest alone, freeze the matrices",
                  optim_muon(params, config));
    config.learning_rate = INFINITY;
    assert_raises("optim_muon: learning_rate is inf, expected 0 or more, and finite",
                  optim_muon(params, config));
    config = good;
    config.iterations = 0;
    assert_raises("optim_muon: iterations is 0, expected 1 or more", optim_muon(params, config));
    config = good;
    config.momentum = 1;
    assert_raises("optim_muon: momentum is 1, expected at least 0 and less than 1",
                  optim_muon(params, config));
    config = good;
    config.weight_decay = -1;
    assert_raises("optim_muon: weight_decay is -1, expected 0 or more, and finite",
                  optim_muon(params, config));
    config = good;
    config.scale = (MuonScale)2;
    assert_raises("optim_muon: the scale is 2, expected a MuonScale", optim_muon(params, config));
    config = good;
    config.rest.learning_rate = -1;
    assert_raises("optim_muon: rest.learning_rate is -1, expected 0 or more, and finite",
                  optim_muon(params, config));
    config = good;
    config.rest.weight_decay = NAN;
    assert_raises("optim_muon: rest.weight_decay is nan, expected 0 or more, and finite",
                  optim_muon(params, config));
    config = good;
    config.rest.beta1 = 1;
    assert_raises("optim_muon: beta1 is 1, expected at least 0 and less than 1",
                  optim_muon(params, config));
    config = good;
    config.rest.schedule = optim_cosine(1, 2, 0);
    assert_raises(
        "optim_muon: rest.schedule is set, expected the schedule of the MuonConfig, which "
        "all weights follow",
        optim_muon(params, config));
    assert_raises("optim_muon: params is NULL", optim_muon(NULL, good));
    params_free(params);
}

int main(void)
{
    return test_main("muon", NULL, NULL);
}
