/* The feature maps that are operations of their own, and linear attention with each of them. */
#include "tests/kinds.h"
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A host copy of an operation's result; frees the tape. */
static Real *values_of(Tape *tape, Tensor *out)
{
    Real *values = test_values(out);
    tape_free(tape);
    return values;
}

/* ----------------------------------------------------------------------------------- polynomial */
static Real *polynomial(const Real *x, Shape size)
{
    Tape *tape = tape_new(test_device());
    return values_of(tape, op_polynomial_features(tape, tape_input(tape, x, size)));
}

static int ascending(const void *a, const void *b)
{
    const Real x = *(const Real *)a, y = *(const Real *)b;
    return (x > y) - (x < y);
}

/* Each row's features are the terms of (1 + q.k)^2 written out, in some order: phi(q).phi(k) is the
 * square with no more features than terms. */
TEST(polynomial_has_every_term_once)
{
    enum { R = 5 };
    for (int64_t D = 1; D <= 33; D++) {
        const int64_t F = 1 + D + D * (D + 1) / 2;
        const Real *x = test_normal((uint64_t)D, R * D);
        Real *phi = polynomial(x, shape(R, D)), *terms = test_zeros(F);
        for (int64_t r = 0; r < R; r++) {
            int64_t count = 0;
            terms[count++] = 1;
            for (int64_t i = 0; i < D; i++) {
                terms[count++] = (Real)(sqrt(2) * (double)x[r * D + i]);
                for (int64_t j = i; j < D; j++)
                    terms[count++] = (Real)((i == j ? 1 : sqrt(2)) * (double)x[r * D + i] *
                                            (double)x[r * D + j]);
            }
            ck_assert_int_eq(count, F);
            qsort(terms, (size_t)F, sizeof *terms, ascending);
            qsort(phi + r * F, (size_t)F, sizeof *phi, ascending);
            assert_close(phi + r * F, terms, F, VECTOR_TOLERANCE / 10);
        }
    }
}

TEST(misuse_of_polynomial_features_raises)
{
    const Real one = 1;
    const int32_t integer = 1;
    Tape *tape = tape_new(test_device());
    assert_raises("op_polynomial_features: x is NULL", op_polynomial_features(tape, NULL));
    assert_raises("op_polynomial_features: x has dtype int32, expected Real",
                  op_polynomial_features(tape, tape_input_i32(tape, &integer, shape(1))));
    assert_raises("op_polynomial_features: x is [], expected one axis at least, [..., D]",
                  op_polynomial_features(tape, tape_input(tape, &one, shape_scalar())));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- random */
enum { ESTIMATED = 8 }; /* columns of the rows whose products are estimated */

TEST(random_features_of_given_projections)
{
    const int64_t sizes[][3] = { { 1, 1, 1 }, { 7, 5, 3 }, { 3, 40, 33 }, { 300, 65, 17 } };
    for (int s = 0; s < 4; s++) {
        const int64_t R = sizes[s][0], F = sizes[s][1], D = sizes[s][2];
        const Real *x = test_normal(1, R * D), *w = test_normal(2, F * D);
        Tape *tape = tape_new(test_device());
        const Real *out = values_of(tape, op_random_features(tape, tape_input(tape, x, shape(R, D)),
                                                             tape_input(tape, w, shape(F, D))));
        Real *exact = test_zeros(R * F);
        for (int64_t r = 0; r < R; r++)
            for (int64_t f = 0; f < F; f++)
                exact[r * F + f] = (Real)(exp(test_dot(x + r * D, w + f * D, D) -
                                              test_dot(x + r * D, x + r * D, D) / 2) /
                                          sqrt((double)F));
        assert_close(out, exact, R * F, VECTOR_TOLERANCE);
    }
}

TEST(misuse_of_random_features_raises)
{
    const Real numbers[12] = { 0 };
    const int32_t integer = 1;
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, numbers, shape(4, 3)), *w = tape_input(tape, numbers, shape(2, 3));
    assert_raises("op_random_features: x is NULL", op_random_features(tape, NULL, w));
    assert_raises("op_random_features: projection is NULL", op_random_features(tape, x, NULL));
    assert_raises("op_random_features: x has dtype int32, expected Real",
                  op_random_features(tape, tape_input_i32(tape, &integer, shape(1)), w));
    assert_raises("op_random_features: projection is [2,3,2], expected two axes, [F, D]",
                  op_random_features(tape, x, tape_input(tape, numbers, shape(2, 3, 2))));
    assert_raises(
        "op_random_features: x is [4,3], expected 4 in its last axis: projection is [3,4]",
        op_random_features(tape, x, tape_input(tape, numbers, shape(3, 4))));
    assert_raises("op_random_features: x is [], expected 3 in its last axis: projection is [2,3]",
                  op_random_features(tape, tape_input(tape, numbers, shape_scalar()), w));
    tape_free(tape);
}

TEST(fourier_features_of_given_projections)
{
    enum { R = 7, F = 5, D = 3 };
    const Real *x = test_normal(1, R * D), *w = test_normal(2, F * D);
    Tape *tape = tape_new(test_device());
    const Real *out = values_of(tape, op_fourier_features(tape, tape_input(tape, x, shape(R, D)),
                                                          tape_input(tape, w, shape(F, D))));
    Real exact[R * 2 * F];
    for (int r = 0; r < R; r++)
        for (int f = 0; f < F; f++) {
            const double y = test_dot(x + r * D, w + f * D, D);
            exact[r * 2 * F + f] = (Real)(cos(y) / sqrt(F));
            exact[r * 2 * F + F + f] = (Real)(sin(y) / sqrt(F));
        }
    assert_close(out, exact, R * 2 * F, VECTOR_TOLERANCE);
}

TEST(misuse_of_fourier_features_raises)
{
    const Real numbers[12] = { 0 };
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, numbers, shape(4, 3)), *w = tape_input(tape, numbers, shape(2, 3));
    assert_raises("op_fourier_features: x is NULL", op_fourier_features(tape, NULL, w));
    assert_raises("op_fourier_features: projection is NULL", op_fourier_features(tape, x, NULL));
    assert_raises("op_fourier_features: projection is [2,3,2], expected two axes, [F, D]",
                  op_fourier_features(tape, x, tape_input(tape, numbers, shape(2, 3, 2))));
    assert_raises("op_fourier_features: x is [], expected 3 in its last axis: projection is [2,3]",
                  op_fourier_features(tape, tape_input(tape, numbers, shape_scalar()), w));
    tape_free(tape);
}

/* ---------------------------------------------------------------------------------- projections */
TEST(projections_repeat_and_continue)
{
    enum { F = 7, D = 3 };
    Real *a = test_zeros(F * D), *b = test_zeros(F * D), *c = test_zeros(F * D);
    Random first = random_new(3, 4), second = first;
    random_orthogonal(&first, a, F, D);
    random_orthogonal(&second, b, F, D);
    random_orthogonal(&second, c, F, D);
    ck_assert(memcmp(a, b, F * D * sizeof *a) == 0);
    ck_assert(memcmp(a, c, F * D * sizeof *a) != 0);
    ck_assert(first.counter != 0 && second.counter == 2 * first.counter);
    assert_raises("random_orthogonal: rows is 0 and columns is 3, expected 1 or more",
                  random_orthogonal(&first, a, 0, D));
}

TEST(orthogonal_projections)
{
    enum { F = 75, D = 33 };
    Real *w = test_zeros(F * D), *plain = test_zeros(F * D);
    Random random = random_new(3, 4), again = random;
    random_orthogonal(&random, w, F, D);
    random_normal(&again, plain, F * D);
    for (int a = 0; a < F; a++) {
        double length = sqrt(test_dot(w + a * D, w + a * D, D));
        double expected = sqrt(test_dot(plain + a * D, plain + a * D, D));
        ck_assert_double_eq_tol(length, expected, 1e-5);
        for (int b = a / D * D; b < a; b++)
            ck_assert_msg(fabs(test_dot(w + a * D, w + b * D, D)) <=
                              VECTOR_TOLERANCE * length * expected,
                          "rows %d and %d", a, b);
    }
}

typedef Tensor *FeaturesOf(Tape *tape, Tensor *x, Tensor *projection);

/* The mean of phi(q).phi(k) over many projections is `exact`; returns the standard deviation
 * of single draws. */
static double estimate(FeaturesOf *features_of, double exact, const Real *qk, bool orthogonal)
{
    enum { F = 8, DRAWS = 4000 };
    Real w[F * ESTIMATED];
    double sum = 0, squares = 0;
    Random random = random_new(11, 12);
    Tape *tape = tape_new(test_device());
    for (int i = 0; i < DRAWS; i++) {
        if (orthogonal)
            random_orthogonal(&random, w, F, ESTIMATED);
        else
            random_normal(&random, w, F * ESTIMATED);
        Tensor *phi = features_of(tape, tape_input(tape, qk, shape(2, ESTIMATED)),
                                  tape_input(tape, w, shape(F, ESTIMATED)));
        const int64_t columns = shape_columns(phi->shape);
        const Real *out = test_values(phi);
        const double product = test_dot(out, out + columns, columns);
        sum += product;
        squares += product * product;
        tape_reset(tape);
    }
    tape_free(tape);
    const double mean = sum / DRAWS, deviation = sqrt(squares / DRAWS - mean * mean);
    ck_assert_msg(fabs(mean - exact) <= 4 * deviation / sqrt(DRAWS), "%g, expected %g", mean,
                  exact);
    return deviation;
}

TEST(random_features_estimate_the_exponential)
{
    if (device_is_cuda(test_device()))
        return; /* projections are drawn on the CPU */
    Real qk[2 * ESTIMATED];
    double squared_distance = 0;
    for (int d = 0; d < ESTIMATED; d++) {
        qk[d] = (Real)(d % 2 ? -0.3 : 0.25);
        qk[ESTIMATED + d] = (Real)(0.1 * (d - 3));
        squared_distance += pow((double)(qk[d] - qk[ESTIMATED + d]), 2);
    }
    const double exponential = exp(test_dot(qk, qk + ESTIMATED, ESTIMATED));
    const double independent = estimate(op_random_features, exponential, qk, false);
    const double orthogonal = estimate(op_random_features, exponential, qk, true);
    ck_assert_msg(orthogonal < independent, "%g, %g", orthogonal, independent);
    estimate(op_fourier_features, exp(-squared_distance / 2), qk, false);
    estimate(op_fourier_features, exp(-squared_distance / 2), qk, true);
}

/* ------------------------------------------------------------------------------------ the layer */
enum { B = 2, N = 9, H = 2, D = 4, WIDTH = H * D, MAPS = FEATURES_FOURIER + 1 };

typedef struct Net {
    Params *params;
    Attention attention;
    Tape *tape;
} Net;

static Net net_new(TestConfig config)
{
    config.heads = H;
    config.head_dim = D;
    Net net = { .params = params_new(test_device(), 5), .tape = tape_new(test_device()) };
    net.attention = nn_attention(net.params, "attention", test_config(net.params, config));
    return net;
}

static const Tensor *projection_of(const Attention *attention)
{
    const LayerFeatures *features = nn_attention_features(attention);
    return features ? features->projection : NULL;
}

static Tensor *net_input(const Net *net)
{
    return tape_input(net->tape, test_normal(1, B * N * WIDTH), shape(B, N, WIDTH));
}

static Real *net_output(const Net *net)
{
    Real *out = test_values(
        nn_attention_forward(net->tape, &net->attention, net_input(net), (AttentionOptions){ 0 }));
    tape_reset(net->tape);
    return out;
}

static void net_free(Net *net)
{
    tape_free(net->tape);
    params_free(net->params);
}

/* Attention with weights kernel(q.k / sqrt D) over the positions j <= i, computed per position and
 * head from the layer's own product of queries, keys and values. */
static Real *plain_attention(const Net *net, double (*kernel)(double score))
{
    Real *out = test_zeros(B * N * WIDTH);
    const Real *packed =
        test_values(nn_linear_forward(net->tape, &net->attention.input, net_input(net)));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < N; i++)
            for (int64_t h = 0; h < H; h++) {
                const Real *q = packed + ((b * N + i) * 3 * H + h) * D;
                double divisor = 0, sum[D] = { 0 };
                for (int64_t j = 0; j <= i; j++) {
                    const Real *k = packed + ((b * N + j) * 3 * H + H + h) * D, *v = k + H * D;
                    const double weight = kernel(test_dot(q, k, D) / sqrt(D));
                    divisor += weight;
                    for (int d = 0; d < D; d++)
                        sum[d] += weight * (double)v[d];
                }
                for (int d = 0; d < D; d++)
                    out[(b * N + i) * WIDTH + h * D + d] = (Real)(sum[d] / divisor);
            }
    Tensor *mixed = tape_input(net->tape, out, shape(B, N, WIDTH));
    Real *values = test_values(nn_linear_forward(net->tape, &net->attention.output, mixed));
    tape_reset(net->tape);
    return values;
}

static double square_of_one_and(double score)
{
    return (1 + score) * (1 + score);
}

static void fail_on_report(const char *name, const char *sentence, void *context)
{
    (void)context;
    ck_abort_msg("%s: %s", name, sentence);
}

/* Over x itself, with weights and projections of the same names, it is attention. */
TEST(cross_attention)
{
    for (int features = FEATURES_POLYNOMIAL; features <= FEATURES_FOURIER; features++) {
        const TestConfig config = {
            .heads = H, .head_dim = D, .attention = KIND_LINEAR, .features = features
        };
        Net net = net_new(config);
        const Real *expected = net_output(&net);
        Params *params = params_new(test_device(), 5);
        const CrossAttention cross =
            nn_cross_attention(params, "attention", WIDTH, test_config(params, config));
        Tensor *x = net_input(&net);
        const Tensor *out =
            nn_cross_attention_forward(net.tape, &cross, x, x, (AttentionOptions){ 0 });
        assert_close(test_values(out), expected, B * N * WIDTH, VECTOR_TOLERANCE);
        params_free(params);
        net_free(&net);
    }
}

TEST(polynomial_attention)
{
    Net net = net_new((TestConfig){ .features = FEATURES_POLYNOMIAL });
    assert_close(net_output(&net), plain_attention(&net, square_of_one_and), B * N * WIDTH, 2e-5);
    net_free(&net);
}

/* With many features the result approximates softmax attention; another draw has another error. */
TEST(random_attention)
{
    Net net = net_new((TestConfig){ .features = FEATURES_RANDOM, .projections = 20000 });
    ck_assert(shape_equal(projection_of(&net.attention)->shape, shape(20000, D)));
    const Real *softmax = plain_attention(&net, exp), *first = net_output(&net);
    assert_close(first, softmax, B * N * WIDTH, 0.02);
    Random random = random_new(1, 2);
    nn_attention_redraw(&net.attention, &random);
    ck_assert(random.counter > 0);
    const Real *second = net_output(&net);
    assert_close(second, softmax, B * N * WIDTH, 0.02);
    ck_assert(memcmp(first, second, B * N * WIDTH * sizeof *first) != 0);
    net_free(&net);
}

/* The projections depend on the seed and the layer's name; nn_transformer_redraw redraws all. */
TEST(projections_of_a_transformer)
{
    Params *params = params_new(test_device(), 5);
    const TransformerConfig config = test_config(
        params,
        (TestConfig){ .layers = 2, .heads = H, .head_dim = D, .features = FEATURES_RANDOM });
    Transformer transformer = nn_transformer(params, "transformer", config);
    Transformer other = nn_transformer(params, "other", config);
    Real *w[4];
    for (int i = 0; i < 2; i++) {
        const Tensor *projection = projection_of(&transformer.layer[i].attention);
        ck_assert(shape_equal(projection->shape, shape(2 * D, D)));
        w[i] = test_values(projection);
        w[2 + i] = test_values(projection_of(&other.layer[i].attention));
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            ck_assert(memcmp(w[i], w[j], 2 * D * D * sizeof *w[i]) != 0);
    Random random = random_new(1, 2);
    nn_transformer_redraw(&transformer, &random);
    for (int i = 0; i < 2; i++) {
        const Real *redrawn = test_values(projection_of(&transformer.layer[i].attention));
        ck_assert(memcmp(w[i], redrawn, 2 * D * D * sizeof *w[i]) != 0);
    }
    params_free(params);
}

/* A file's model computes as the saved one, whatever either has drawn. */
TEST(files_hold_the_projections)
{
    char path[] = "/tmp/tapegrad-features-XXXXXX";
    close(mkstemp(path));
    const TestConfig config = { .features = FEATURES_RANDOM };
    Net saved = net_new(config), loaded = net_new(config);
    Random random = random_new(1, 2);
    nn_attention_redraw(&saved.attention, &random);
    const Real *expected = net_output(&saved), *drawn = net_output(&loaded);
    const size_t bytes = B * N * WIDTH * sizeof *expected;
    ck_assert_mem_ne(drawn, expected, bytes);
    ck_assert(params_save(saved.params, path) && params_load(loaded.params, path));
    ck_assert_mem_eq(net_output(&loaded), expected, bytes);

    Net some = net_new(config);
    ck_assert_int_eq(params_load_some(some.params, path, fail_on_report, NULL),
                     params_count(some.params));
    ck_assert_mem_eq(net_output(&some), expected, bytes);

    Net wider = net_new((TestConfig){ .features = FEATURES_RANDOM, .projections = 9 });
    const Real *before = net_output(&wider);
    ck_assert(!params_load(wider.params, path));
    ck_assert_msg(strstr(tapegrad_error(), "attention.projection") != NULL, "%s", tapegrad_error());
    ck_assert_mem_eq(net_output(&wider), before, bytes);

    /* Earlier files hold the weights alone. */
    Net weights = net_new((TestConfig){ .features = FEATURE_MAP_ELU_PLUS_ONE });
    Net earlier = net_new(config);
    ck_assert(params_save(weights.params, path) && params_load(earlier.params, path));
    ck_assert_mem_eq(net_output(&earlier), drawn, bytes);
    Net *nets[] = { &saved, &loaded, &some, &wider, &weights, &earlier };
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++)
        net_free(nets[i]);
    unlink(path);
}

/* Every feature map gives finite results, and no two give the same. */
TEST(every_map_through_the_layer)
{
    for (int causal = 0; causal < 2; causal++) {
        Real *out[MAPS];
        for (int f = 0; f < MAPS; f++) {
            Net net = net_new((TestConfig){
                .features = f, .attention = causal ? KIND_CAUSAL_LINEAR : KIND_LINEAR });
            ck_assert((projection_of(&net.attention) != NULL) == (f >= FEATURES_RANDOM));
            out[f] = net_output(&net);
            for (int i = 0; i < B * N * WIDTH; i++)
                ck_assert_msg(isfinite(out[f][i]), "map %d", f);
            for (int other = 0; other < f; other++)
                ck_assert_mem_ne(out[f], out[other], B * N * WIDTH * sizeof(Real));
            net_free(&net);
        }
    }
}

TEST(unknown_feature_maps_raise)
{
    Params *params = params_new(test_device(), 1);
    FeatureConfig config = { .features = (Features)8 };
    assert_raises(
        "nn_feature_attention: features is 8, expected FEATURES_SQUARED_RELU to FEATURES_FOURIER",
        nn_feature_attention(params, config));
    assert_raises(
        "nn_feature_attention: features is 0, expected FEATURES_SQUARED_RELU to FEATURES_FOURIER",
        nn_feature_attention(params, (FeatureConfig){ .projections = 4 }));
    config = (FeatureConfig){ .features = FEATURES_RANDOM, .projections = -1 };
    assert_raises("nn_feature_attention: projections is -1, expected 1 to 1048576, or 0 for the "
                  "default",
                  nn_feature_attention(params, config));
    assert_raises(
        "nn_causal_linear_attention: there is no feature map 4",
        nn_causal_linear_attention(params, (CausalLinearConfig){ .features = (FeatureMap)4 }));
    assert_raises("nn_linear_attention: there is no feature map -1",
                  nn_linear_attention(params, (FeatureMap)-1));
    config = (FeatureConfig){ .features = FEATURES_POLYNOMIAL, .projections = 4 };
    assert_raises("nn_feature_attention: projections is 4, expected 0: random and Fourier features "
                  "alone have projections",
                  nn_feature_attention(params, config));
#define NOT_IDENTITY(name)                                                                         \
    "nn_feature_attention: inner is " name " attention, expected linear or causal linear "         \
    "attention with FEATURE_MAP_IDENTITY"
    config = (FeatureConfig){ .features = FEATURES_POLYNOMIAL };
    config.inner = nn_causal_softmax_attention(params, (CausalSoftmaxConfig){ 0 });
    assert_raises(NOT_IDENTITY("causal softmax"), nn_feature_attention(params, config));
    config.inner = nn_linear_attention(params, FEATURE_MAP_RELU);
    assert_raises(NOT_IDENTITY("linear"), nn_feature_attention(params, config));
    ck_assert_int_eq(params_count(params), 0);
    params_free(params);
    const Real numbers[8] = { 0 };
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, numbers, shape(1, 2, 2, 2));
    assert_raises(
        "op_causal_linear_attention: features is 6, expected FEATURE_MAP_ELU_PLUS_ONE to "
        "FEATURE_MAP_IDENTITY",
        op_causal_linear_attention(
            tape, x, x, x, (CausalLinearAttentionOptions){ .features = (FeatureMap)6 }, NULL));
    tape_free(tape);
}

int main(void)
{
    return test_main("features", NULL, NULL);
}
