/* Linear attention, causal and not, against reference vectors, a plain quadratic oracle and finite
 * differences. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const Real eps = (Real)1e-6;

/* What relates an oracle in double to the operation; cancellation costs a few more digits. */
#ifdef TAPEGRAD_DOUBLE
static const double tolerance = 1e-11;
#else
static const double tolerance = 2e-5;
#endif

/* Where products are taken in three of bf16, on tensor cores, a result's error is 1e-5 of the numbers
 * that are added; gradients in which much of them cancels have fewer digits left. */
static bool in_three_products(bool causal)
{
    return causal && sizeof(Real) == sizeof(float) && device_is_cuda(test_device());
}

static Tape *tape;

static LinearAttention with_eps(Real value)
{
    return (LinearAttention){ .eps = value };
}

static LinearAttention with_lengths(Tensor *key_lengths)
{
    return (LinearAttention){ .eps = eps, .key_lengths = key_lengths };
}

/* -------------------------------------------------------------------------------------- the cases */

/* What of the results a loss uses. */
typedef enum { OUT, OUT_OF_BOTH, BOTH, FINAL_STATE } Used;

typedef struct Case {
    int64_t B, N, keys, H, D, M;
    bool causal, lengths; /* lengths: sequence b has 1 + (7 b + 5) mod keys keys */
    double eps;
    FeatureMap features;
    AttentionForm form;
    int64_t chunk;
    bool state; /* one is given */
    Used used;  /* and the final one asked for, unless OUT */
    int64_t sequences;
    const int32_t *offsets; /* [sequences + 1], or NULL */
} Case;

static int64_t key_count(const Case *c, int64_t b)
{
    return c->lengths ? 1 + (7 * b + 5) % c->keys : c->keys;
}

static Tensor *length_tensor(const Case *c)
{
    if (!c->lengths)
        return NULL;
    int32_t *lengths = malloc((size_t)c->B * sizeof *lengths);
    for (int64_t b = 0; b < c->B; b++)
        lengths[b] = (int32_t)key_count(c, b);
    Tensor *tensor = tape_input_i32(tape, lengths, shape(c->B));
    free(lengths);
    return tensor;
}

static Tensor *offset_tensor(const Case *c)
{
    return c->offsets ? tape_input_i32(tape, c->offsets, shape(c->sequences + 1)) : NULL;
}

/* With a state and where to put the final one, or NULL. */
static Tensor *attend_from(const Case *c, Tensor *query, Tensor *key, Tensor *value, Tensor *state,
                           Tensor **final_state)
{
    LinearAttention options = { .features = c->features,
                                .eps = (Real)c->eps,
                                .key_lengths = length_tensor(c) };
    if (!c->causal)
        return op_linear_attention(tape, query, key, value, options);
    options.form = c->form;
    options.chunk = c->chunk;
    options.offsets = offset_tensor(c);
    options.state = state;
    options.final_state = final_state;
    return op_causal_linear_attention(tape, query, key, value, options);
}

static Tensor *attend(const Case *c, Tensor *query, Tensor *key, Tensor *value)
{
    return attend_from(c, query, key, value, NULL, NULL);
}

/* Values of [B, N, H, D], [B, keys, H, D], [B, keys, H, M], a state [sequences, H, D, M + 1], dL/dout
 * [B, N, H, M] and dL/dfinal_state, and results. */
typedef struct Values {
    Real *query, *key, *value, *state, *dout, *dfinal_state;
    Real *out, *final_state, *dquery, *dkey, *dvalue, *dstate;
} Values;

static int64_t queries_of(const Case *c)
{
    return c->B * c->N * c->H * c->D;
}
static int64_t keys_of(const Case *c)
{
    return c->B * c->keys * c->H * c->D;
}
static int64_t values_of(const Case *c)
{
    return c->B * c->keys * c->H * c->M;
}
static int64_t outs_of(const Case *c)
{
    return c->B * c->N * c->H * c->M;
}
static Shape state_shape(const Case *c)
{
    return shape(c->offsets ? c->sequences : c->B, c->H, c->D, c->M + 1);
}
static int64_t states_of(const Case *c)
{
    return shape_count(state_shape(c));
}

/* Positive, and not near 0: what queries and keys of the identity must be, and sums of features. */
static void make_positive(Real *x, int64_t count, int64_t step)
{
    for (int64_t i = step - 1; i < count; i += step)
        x[i] = (Real)(fabs(x[i]) + 0.1);
}

static Values inputs(const Case *c)
{
    Values v = { .query = test_normal(1, queries_of(c)),
                 .key = test_normal(2, keys_of(c)),
                 .value = test_normal(3, values_of(c)),
                 .state = test_normal(5, states_of(c)),
                 .dout = test_normal(4, outs_of(c)),
                 .dfinal_state = test_normal(6, states_of(c)) };
    if (c->features == FEATURES_IDENTITY) {
        make_positive(v.query, queries_of(c), 1);
        make_positive(v.key, keys_of(c), 1);
    }
    make_positive(v.state, states_of(c), c->M + 1);
    if (!c->state)
        memset(v.state, 0, (size_t)states_of(c) * sizeof(Real));
    if (c->used == FINAL_STATE)
        memset(v.dout, 0, (size_t)outs_of(c) * sizeof(Real));
    if (c->used != FINAL_STATE && c->used != BOTH)
        memset(v.dfinal_state, 0, (size_t)states_of(c) * sizeof(Real));
    return v;
}

static Tensor *inner_product(Tensor *x, const Real *y)
{
    return op_sum(tape, op_multiply(tape, x, tape_input(tape, y, x->shape)), OVER_ALL);
}

/* From those results that are used. */
static void backward(const Case *c, const Values *v, Tensor *out, Tensor *final_state)
{
    if (c->used == BOTH)
        tape_backward(tape, op_add(tape, inner_product(out, v->dout),
                                   inner_product(final_state, v->dfinal_state)));
    else if (c->used == FINAL_STATE)
        tape_backward_from(tape, final_state,
                           tape_input(tape, v->dfinal_state, final_state->shape));
    else
        tape_backward_from(tape, out, tape_input(tape, v->dout, out->shape));
}

static Real *values_or_zeros(const Tensor *x, int64_t count)
{
    if (x)
        return test_values(x);
    Real *zeros = test_normal(0, count);
    memset(zeros, 0, (size_t)count * sizeof(Real));
    return zeros;
}

/* The operation and its gradients. */
static void compute(const Case *c, Values *v)
{
    Tensor *query = tape_variable(tape, v->query, shape(c->B, c->N, c->H, c->D));
    Tensor *key = tape_variable(tape, v->key, shape(c->B, c->keys, c->H, c->D));
    Tensor *value = tape_variable(tape, v->value, shape(c->B, c->keys, c->H, c->M));
    Tensor *state = c->state ? tape_variable(tape, v->state, state_shape(c)) : NULL;
    Tensor *final_state = NULL;
    Tensor *out = attend_from(c, query, key, value, state, c->used == OUT ? NULL : &final_state);
    tensor_keep(out);
    if (final_state)
        tensor_keep(final_state);
    backward(c, v, out, final_state);
    v->out = test_values(out);
    v->final_state = values_or_zeros(final_state, states_of(c));
    v->dquery = test_values(tensor_gradient(query));
    v->dkey = test_values(tensor_gradient(key));
    v->dvalue = test_values(tensor_gradient(value));
    v->dstate = values_or_zeros(state ? tensor_gradient(state) : NULL, states_of(c));
    tape_reset(tape);
}

/* ------------------------------------------------------------------------------------- the oracle
 * One sequence and head, every weight W_ij = phi(q_i).phi(k_j) where i sees j; v~_j = [v_j, 1]; a
 * state S~ = [S, z] before, and dL/dfinal_state = F:
 *     den_i = sum_j W_ij + a_i.z + eps      out_i = (sum_j W_ij v_j + S^T a_i) / den_i
 *     g~_i = [g_i, -g_i.out_i] / den_i      dW_ij = g~_i.v~_j
 *     da_i = sum_j dW_ij b_j + S~ g~_i      db_j = sum_i dW_ij a_i + F v~_j
 *     dv~_j = sum_i W_ij g~_i + F^T b_j     dS~ = sum_i a_i g~_i^T + F */
static double phi(FeatureMap features, double x)
{
    switch (features) {
    case FEATURES_RELU:
        return x > 0 ? x : 0;
    case FEATURES_SOFTPLUS:
        return fmax(x, 0) + log1p(exp(-fabs(x)));
    case FEATURES_IDENTITY:
        return x;
    default:
        return x > 0 ? x + 1 : exp(x);
    }
}

static double slope(FeatureMap features, double x)
{
    switch (features) {
    case FEATURES_RELU:
        return x > 0;
    case FEATURES_SOFTPLUS:
        return 1 / (1 + exp(-x));
    case FEATURES_IDENTITY:
        return 1;
    default:
        return x > 0 ? 1 : exp(x);
    }
}

/* One head of one sequence, whose positions lie in a row of N. */
typedef struct Head {
    int64_t b, h;                /* place of the row, */
    int64_t first, end;          /* positions there, */
    int64_t keys;                /* how many keys count, from first on, */
    int64_t state;               /* and where the state begins */
    double *features, *values;   /* b_j [keys, D], v~_j [keys, M + 1], and their gradients */
    double *dfeatures, *dvalues; /* likewise */
    double *dstate;              /* [D, M + 1] */
} Head;

/* element c of row n of head h of sequence b, of [B, positions, H, columns] */
static int64_t at(const Case *c, int64_t b, int64_t positions, int64_t n, int64_t h,
                  int64_t columns)
{
    return ((b * positions + n) * c->H + h) * columns;
}

static double *zeros(int64_t count)
{
    return calloc((size_t)count + 1, sizeof(double));
}

static void oracle_row(const Case *c, Values *v, const Head *s, int64_t i)
{
    const int64_t D = c->D, columns = c->M + 1; /* of v~ */
    const int64_t query = at(c, s->b, c->N, i, s->h, D), out = at(c, s->b, c->N, i, s->h, c->M);
    const int64_t before = i - s->first + 1;
    const int64_t seen = c->causal && before < s->keys ? before : s->keys;
    const Real *S = v->state + s->state;
    double *W = zeros(seen), *dW = zeros(seen), *a = zeros(D), *g = zeros(columns);
    for (int64_t d = 0; d < D; d++)
        a[d] = phi(c->features, v->query[query + d]);
    for (int64_t j = 0; j < seen; j++)
        for (int64_t d = 0; d < D; d++)
            W[j] += a[d] * s->features[j * D + d];
    double den = c->eps;
    for (int64_t m = c->M; m >= 0; m--) { /* the divisor first */
        double sum = 0;
        for (int64_t j = 0; j < seen; j++)
            sum += W[j] * s->values[j * columns + m];
        for (int64_t d = 0; d < D; d++)
            sum += a[d] * S[d * columns + m];
        if (m == c->M) {
            den += sum;
            continue;
        }
        v->out[out + m] = (Real)(sum / den);
        g[m] = v->dout[out + m] / den;
        g[c->M] -= g[m] * sum / den;
    }
    for (int64_t j = 0; j < seen; j++)
        for (int64_t m = 0; m < columns; m++) {
            dW[j] += g[m] * s->values[j * columns + m];
            s->dvalues[j * columns + m] += W[j] * g[m];
        }
    for (int64_t d = 0; d < D; d++) {
        double da = 0;
        for (int64_t j = 0; j < seen; j++) {
            da += dW[j] * s->features[j * D + d];
            s->dfeatures[j * D + d] += dW[j] * a[d];
        }
        for (int64_t m = 0; m < columns; m++) {
            da += S[d * columns + m] * g[m];
            s->dstate[d * columns + m] += a[d] * g[m];
        }
        v->dquery[query + d] = (Real)(da * slope(c->features, v->query[query + d]));
    }
    free(W);
    free(dW);
    free(a);
    free(g);
}

/* The final state, and what comes through it. */
static void oracle_final_state(const Case *c, Values *v, const Head *s)
{
    const int64_t D = c->D, columns = c->M + 1;
    const Real *F = v->dfinal_state + s->state;
    for (int64_t d = 0; d < D; d++)
        for (int64_t m = 0; m < columns; m++) {
            const int64_t element = d * columns + m;
            double sum = v->state[s->state + element];
            for (int64_t j = 0; j < s->keys; j++) {
                sum += s->features[j * D + d] * s->values[j * columns + m];
                s->dfeatures[j * D + d] += (double)F[element] * s->values[j * columns + m];
                s->dvalues[j * columns + m] += (double)F[element] * s->features[j * D + d];
            }
            s->dstate[element] += (double)F[element];
            v->final_state[s->state + element] = (Real)sum;
        }
}

static void oracle_head(const Case *c, Values *v, Head s)
{
    const int64_t D = c->D, columns = c->M + 1;
    s.features = zeros(s.keys * D);
    s.dfeatures = zeros(s.keys * D);
    s.values = zeros(s.keys * columns);
    s.dvalues = zeros(s.keys * columns);
    s.dstate = zeros(D * columns);
    const int64_t key = at(c, s.b, c->keys, s.first, s.h, D), key_stride = c->H * D;
    const int64_t value = at(c, s.b, c->keys, s.first, s.h, c->M), value_stride = c->H * c->M;
    for (int64_t j = 0; j < s.keys; j++) {
        for (int64_t d = 0; d < D; d++)
            s.features[j * D + d] = phi(c->features, v->key[key + j * key_stride + d]);
        for (int64_t m = 0; m < columns; m++)
            s.values[j * columns + m] = m < c->M ? v->value[value + j * value_stride + m] : 1;
    }
    for (int64_t i = s.first; i < s.end; i++)
        oracle_row(c, v, &s, i);
    oracle_final_state(c, v, &s);
    for (int64_t j = 0; j < s.keys; j++) {
        for (int64_t d = 0; d < D; d++) {
            const int64_t element = key + j * key_stride + d;
            v->dkey[element] = (Real)(s.dfeatures[j * D + d] * slope(c->features, v->key[element]));
        }
        for (int64_t m = 0; m < c->M; m++)
            v->dvalue[value + j * value_stride + m] = (Real)s.dvalues[j * columns + m];
    }
    for (int64_t i = 0; i < D * columns; i++)
        v->dstate[s.state + i] = (Real)s.dstate[i];
    free(s.features);
    free(s.dfeatures);
    free(s.values);
    free(s.dvalues);
    free(s.dstate);
}

static void oracle(const Case *c, Values *v)
{
    v->out = calloc((size_t)outs_of(c), sizeof(Real));
    v->final_state = calloc((size_t)states_of(c), sizeof(Real));
    v->dquery = calloc((size_t)queries_of(c), sizeof(Real));
    v->dkey = calloc((size_t)keys_of(c), sizeof(Real));
    v->dvalue = calloc((size_t)values_of(c), sizeof(Real));
    v->dstate = calloc((size_t)states_of(c), sizeof(Real));
    for (int64_t s = 0; s < state_shape(c).size[0]; s++)
        for (int64_t h = 0; h < c->H; h++) {
            Head head = { .b = s, .h = h, .end = c->N, .keys = key_count(c, s) };
            if (c->offsets) {
                head.b = 0;
                head.first = c->offsets[s];
                head.end = c->offsets[s + 1];
                head.keys = head.end - head.first;
            }
            head.state = (s * c->H + h) * c->D * (c->M + 1);
            oracle_head(c, v, head);
        }
}

static void release(Values *v)
{
    free(v->out);
    free(v->final_state);
    free(v->dquery);
    free(v->dkey);
    free(v->dvalue);
    free(v->dstate);
}

static void assert_same(const Case *c, const Values *actual, const Values *expected)
{
    const double cancelled = in_three_products(c->causal) ? 1e-4 : tolerance;
    assert_close(actual->out, expected->out, outs_of(c), tolerance);
    if (c->used != OUT)
        assert_close(actual->final_state, expected->final_state, states_of(c), tolerance);
    assert_close(actual->dquery, expected->dquery, queries_of(c), cancelled);
    assert_close(actual->dkey, expected->dkey, keys_of(c), cancelled);
    assert_close(actual->dvalue, expected->dvalue, values_of(c), tolerance);
    if (c->state)
        assert_close(actual->dstate, expected->dstate, states_of(c), tolerance);
}

static void assert_oracle(Case c)
{
    Values actual = inputs(&c), expected = actual;
    compute(&c, &actual);
    oracle(&c, &expected);
    assert_same(&c, &actual, &expected);
    release(&expected);
}

/* Sizes below, at and above the kernels' blocks of positions, columns and heads; so many heads that a
 * GPU takes each whole, and fewer, which it cuts; greater ones, and more segments. */
START_TEST(causal_matches_the_quadratic_oracle)
{
    static const int64_t sizes[][5] = {
        /* B, N, H, D, M */
        { 1, 2, 1, 1, 1 },       { 2, 15, 1, 3, 5 },    { 1, 16, 2, 8, 8 },
        { 2, 17, 9, 16, 16 },    { 1, 70, 1, 130, 7 },  { 1, 33, 3, 7, 130 },
        { 3, 40, 2, 32, 32 },    { 1, 100, 4, 64, 64 }, { 1, 31, 11, 24, 40 },
        { 2, 64, 2, 48, 16 },    { 1, 300, 1, 33, 31 }, { 12, 150, 11, 8, 8 },
        { 5, 450, 6, 5, 3 },     { 2, 330, 26, 4, 36 }, { 1, 600, 1, 64, 64 },
        { 1, 200, 1, 130, 140 }, { 1, 130, 2, 7, 270 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        assert_oracle((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 0.5 });
        if (s[3] > 1) /* else a query's size cancels out, and its gradient is eps alone */
            assert_oracle((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 1e-6 });
    }
}
END_TEST

START_TEST(linear_matches_the_quadratic_oracle)
{
    static const int64_t sizes[][6] = {
        /* B, N, keys, H, D, M */
        { 1, 1, 1, 1, 1, 1 },         { 2, 15, 4, 1, 3, 5 },      { 1, 16, 30, 2, 8, 8 },
        { 2, 17, 17, 9, 16, 16 },     { 1, 3, 70, 1, 130, 7 },    { 4, 33, 20, 3, 7, 130 },
        { 12, 70, 140, 11, 8, 8 },    { 1, 600, 580, 1, 64, 64 }, { 5, 300, 450, 6, 5, 3 },
        { 1, 100, 200, 1, 130, 140 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        /* With one key a query's size cancels out, and its gradient is eps alone: ask for more. */
        assert_oracle((Case){ s[0], s[1], s[2], s[3], s[4], s[5], false, false, .eps = 0.5 });
        assert_oracle((Case){ s[0], s[1], s[2], s[3], s[4], s[5], false, true, .eps = 0.5 });
    }
}
END_TEST

/* -------------------------------------------------------------------------------------- the options */

/* With relu a position may see nothing but 0: eps bounds what is divided by it. */
static double eps_for(FeatureMap features)
{
    return features == FEATURES_RELU ? 0.5 : 1e-6;
}

START_TEST(feature_maps)
{
    for (FeatureMap f = FEATURES_ELU_PLUS_ONE; f <= FEATURES_IDENTITY; f++) {
        const double e = eps_for(f);
        assert_oracle((Case){ 2, 37, 37, 3, 5, 7, true, false, .eps = e, .features = f });
        assert_oracle((Case){ 1, 150, 150, 2, 32, 40, true, false, .eps = e, .features = f });
        assert_oracle((Case){ 2, 20, 31, 3, 5, 7, false, false, .eps = e, .features = f });
        assert_oracle((Case){ 5, 70, 64, 2, 32, 40, false, true, .eps = e, .features = f });
    }
}
END_TEST

/* Sequences of lengths around the kernels' blocks of positions. */
START_TEST(causal_key_lengths)
{
    static const int64_t sizes[][5] = {
        /* B, N, H, D, M */
        { 1, 1, 1, 2, 1 },  { 3, 15, 2, 3, 5 },   { 7, 20, 1, 16, 16 },
        { 9, 33, 3, 8, 8 }, { 30, 40, 1, 5, 20 }, { 4, 300, 2, 32, 32 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        for (Used used = OUT; used <= FINAL_STATE; used++)
            assert_oracle((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, true, .eps = 0.5,
                                  .state = used >= BOTH, .used = used });
    }
}
END_TEST

/* Empty sequences, one of one position, and borders beside those of blocks; all together empty but
 * for one. */
static const int32_t offsets_of_70[] = { 0, 0, 1, 16, 16, 16, 33, 70, 70 };
static const int32_t offsets_of_300[] = { 0, 128, 257, 300 };
static const int32_t one_sequence[] = { 0, 70 };

START_TEST(offsets)
{
    for (Used used = OUT; used <= FINAL_STATE; used++) {
        Case c = {
            1, 70, 70, 2, 5, 7, true, false, .eps = 1e-6, .state = used >= BOTH, .used = used
        };
        c.offsets = offsets_of_70;
        c.sequences = 8;
        assert_oracle(c);
        c.H = 9;
        assert_oracle(c);
        c.D = c.M = 32;
        assert_oracle(c);
        c.offsets = one_sequence;
        c.sequences = 1;
        assert_oracle(c);
        c.offsets = offsets_of_300;
        c.sequences = 3;
        c.N = c.keys = 300;
        assert_oracle(c);
    }
}
END_TEST

START_TEST(states)
{
    static const int64_t sizes[][5] = {
        /* B, N, H, D, M */
        { 1, 1, 1, 2, 1 },     { 2, 15, 1, 3, 5 },    { 2, 17, 9, 16, 16 },   { 3, 40, 2, 7, 9 },
        { 1, 300, 3, 33, 31 }, { 1, 100, 1, 64, 64 }, { 1, 33, 1, 140, 130 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        for (int given = 0; given < 2; given++)
            for (Used used = OUT; used <= FINAL_STATE; used++)
                assert_oracle((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 0.5,
                                      .state = given, .used = used });
    }
}
END_TEST

/* Every form with chunks that divide nothing, longer than the sequence, and its own. */
static void assert_forms(Case c)
{
    static const int64_t chunks[] = { 0, 1, 5, 16, 33, 1000 };
    Values expected = inputs(&c);
    oracle(&c, &expected);
    for (c.form = FORM_BEST; c.form <= FORM_QUADRATIC; c.form++)
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            c.chunk = chunks[i];
            Values actual = inputs(&c);
            compute(&c, &actual);
            assert_same(&c, &actual, &expected);
        }
    release(&expected);
}

START_TEST(forms)
{
    assert_forms((Case){ 2, 1, 1, 1, 3, 2, true, false, .eps = 0.5 });
    assert_forms(
        (Case){ 2, 45, 45, 2, 5, 7, true, false, .eps = 1e-6, .state = true, .used = BOTH });
    assert_forms((Case){ 1, 130, 130, 3, 16, 40, true, false, .eps = 1e-6 });
    assert_forms(
        (Case){ 3, 45, 45, 2, 20, 7, true, true, .eps = 1e-6, .state = true, .used = BOTH });
    assert_forms((Case){ 3, 45, 45, 2, 5, 7, true, true, .eps = 1e-6, .used = FINAL_STATE });
    assert_forms((Case){ 1, 70, 70, 2, 5, 20, true, false, .eps = 1e-6,
                         .features = FEATURES_SOFTPLUS, .state = true, .used = BOTH, .sequences = 8,
                         .offsets = offsets_of_70 });
}
END_TEST

/* Long enough for every form's segments and blocks, on tensor cores too. */
START_TEST(forms_of_long_sequences)
{
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++) {
        assert_oracle((Case){ 1, 600, 600, 1, 32, 64, true, false, .eps = 1e-6, .form = form,
                              .state = true, .used = BOTH });
        assert_oracle((Case){ 2, 400, 400, 2, 64, 32, true, true, .eps = 1e-6, .form = form });
        assert_oracle((Case){ 1, 300, 300, 2, 32, 32, true, false, .eps = 1e-6, .form = form,
                              .sequences = 3, .offsets = offsets_of_300 });
    }
}
END_TEST

/* A sequence cut in pieces, each beginning with the state in which the one before ended, gives what
 * the whole gives, forward and backward. */
static void assert_cut(Case c, const int64_t *cuts, int count)
{
    Values whole = inputs(&c), pieces = whole;
    compute(&c, &whole);
    Tensor *query = tape_variable(tape, pieces.query, shape(c.B, c.N, c.H, c.D));
    Tensor *key = tape_variable(tape, pieces.key, shape(c.B, c.keys, c.H, c.D));
    Tensor *value = tape_variable(tape, pieces.value, shape(c.B, c.keys, c.H, c.M));
    Tensor *first = c.state ? tape_variable(tape, pieces.state, state_shape(&c)) : NULL;
    Tensor *out = NULL, *state = first;
    for (int i = 0; i <= count; i++) {
        const int64_t start = i ? cuts[i - 1] : 0, length = (i < count ? cuts[i] : c.N) - start;
        Tensor *piece = attend_from(&c, op_slice(tape, query, 1, start, length),
                                    op_slice(tape, key, 1, start, length),
                                    op_slice(tape, value, 1, start, length), state, &state);
        out = out ? op_concat(tape, out, piece, 1) : piece;
    }
    tensor_keep(out);
    tensor_keep(state);
    backward(&c, &pieces, out, state);
    pieces.out = test_values(out);
    pieces.final_state = test_values(state);
    pieces.dquery = test_values(tensor_gradient(query));
    pieces.dkey = test_values(tensor_gradient(key));
    pieces.dvalue = test_values(tensor_gradient(value));
    pieces.dstate = values_or_zeros(first ? tensor_gradient(first) : NULL, states_of(&c));
    assert_same(&c, &pieces, &whole);
    tape_reset(tape);
}

START_TEST(cut_sequences_equal_the_whole)
{
    static const int64_t cuts[] = { 1, 17, 18, 34, 59 };
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++)
        for (Used used = OUT_OF_BOTH; used <= FINAL_STATE; used++) {
            Case c = { 2, 60, 60, 3, 7, 5, true, false, .eps = 1e-6, .form = form, .used = used };
            assert_cut(c, cuts, 5);
            c.state = true;
            assert_cut(c, cuts + 2, 1);
        }
}
END_TEST

/* How many threads there are changes no bit of a form that does not cut sequences into segments for
 * them, and of those only the rounding. */
static void assert_same_on_threads(Case c, bool same_bits)
{
    static const int counts[] = { 1, 2, 2, 5, 16 };
    Values first = inputs(&c);
    device_set_threads(counts[0]);
    compute(&c, &first);
    for (size_t i = 1; i < sizeof counts / sizeof *counts; i++) {
        Values again = inputs(&c);
        device_set_threads(counts[i]);
        compute(&c, &again);
        assert_same(&c, &again, &first);
        if (!same_bits)
            continue;
        ck_assert_mem_eq(again.out, first.out, (size_t)outs_of(&c) * sizeof(Real));
        ck_assert_mem_eq(again.dquery, first.dquery, (size_t)queries_of(&c) * sizeof(Real));
        ck_assert_mem_eq(again.dkey, first.dkey, (size_t)keys_of(&c) * sizeof(Real));
        ck_assert_mem_eq(again.dvalue, first.dvalue, (size_t)values_of(&c) * sizeof(Real));
    }
}

START_TEST(results_do_not_depend_on_the_threads)
{
    Case c = { 1, 50, 50, 3, 40, 70, true, false, .eps = 1e-6, .state = true, .used = BOTH };
    for (c.form = FORM_BEST; c.form <= FORM_QUADRATIC; c.form++)
        assert_same_on_threads(c, c.form != FORM_BEST && c.form != FORM_CHUNK_PARALLEL);
    c = (Case){ 1, 700, 700, 1, 20, 30, true, false, .eps = 1e-6, .state = true, .used = BOTH };
    assert_same_on_threads(c, false);
}
END_TEST

/* ------------------------------------------------------------------------------ reference vectors */
static AttentionForm vector_form;

static Tensor *causal(Tape *t, Tensor **in)
{
    return op_causal_linear_attention(t, in[0], in[1], in[2],
                                      (LinearAttention){ .eps = eps, .form = vector_form });
}

static Tensor *linear(Tape *t, Tensor **in)
{
    return op_linear_attention(t, in[0], in[1], in[2], with_eps(eps));
}

static Tensor *linear_with_lengths(Tape *t, Tensor **in)
{
    return op_linear_attention(t, in[0], in[1], in[2], with_lengths(in[3]));
}

START_TEST(reference_vectors)
{
    for (vector_form = FORM_BEST; vector_form <= FORM_QUADRATIC; vector_form++)
        check_vectors("causal_linear_attention_", "q k v", causal);
    check_vectors("linear_attention_B", "q k v", linear);
    check_vectors("linear_attention_key_lengths", "q k v #key_len", linear_with_lengths);
}
END_TEST

/* -------------------------------------------------------------------------------- gradient checks */
static Tensor *checked_causal(Tape *t, Tensor *const *in, void *context)
{
    return op_causal_linear_attention(t, in[0], in[1], in[2], with_eps(*(Real *)context));
}

static Tensor *checked_packed(Tape *t, Tensor *const *in, void *context)
{
    return op_causal_linear_attention(t, in[0], NULL, NULL, with_eps(*(Real *)context));
}

/* One tensor in all three roles: its gradient has three contributions. */
static Tensor *checked_same(Tape *t, Tensor *const *in, void *context)
{
    return op_causal_linear_attention(t, in[0], in[0], in[0], with_eps(*(Real *)context));
}

static Tensor *checked_linear(Tape *t, Tensor *const *in, void *context)
{
    static const int32_t lengths[] = { 3, 4 };
    Tensor *key_lengths = context ? tape_input_i32(t, lengths, shape(2)) : NULL;
    return op_linear_attention(t, in[0], in[1], in[2],
                               (LinearAttention){ .eps = (Real)0.1, .key_lengths = key_lengths });
}

static Tensor *checked_linear_packed(Tape *t, Tensor *const *in, void *context)
{
    return op_linear_attention(t, in[0], NULL, NULL, with_eps(*(Real *)context));
}

static Tensor *checked_linear_same(Tape *t, Tensor *const *in, void *context)
{
    return op_linear_attention(t, in[0], in[0], in[0], with_eps(*(Real *)context));
}

/* Queries and keys used twice: the second contribution adds to the first. */
static Tensor *checked_twice(Tape *t, Tensor *const *in, void *context)
{
    const Real twice_eps = *(Real *)context;
    Tensor *once = op_causal_linear_attention(t, in[0], in[1], in[2], with_eps(twice_eps));
    return op_causal_linear_attention(t, in[0], in[1], once, with_eps(twice_eps));
}

static Tensor *checked_linear_twice(Tape *t, Tensor *const *in, void *context)
{
    const Real twice_eps = *(Real *)context;
    Tensor *once = op_linear_attention(t, in[0], in[1], in[2], with_eps(twice_eps));
    return op_linear_attention(t, in[0], in[1], once, with_eps(twice_eps));
}

/* A loss of both results, with key lengths or offsets. */
typedef struct Options {
    FeatureMap features;
    AttentionForm form;
    bool lengths, offsets;
} Options;

static Tensor *checked_options(Tape *t, Tensor *const *in, void *context)
{
    const Options *options = context;
    static const int32_t lengths[] = { 3, 9 }, borders[] = { 0, 4, 4, 9 };
    Tensor *final_state;
    Tensor *out = op_causal_linear_attention(
        t, in[0], in[1], in[2],
        (LinearAttention){
            .features = options->features,
            .eps = (Real)0.5,
            .key_lengths = options->lengths ? tape_input_i32(t, lengths, shape(2)) : NULL,
            .form = options->form,
            .chunk = 4,
            .offsets = options->offsets ? tape_input_i32(t, borders, shape(4)) : NULL,
            .state = op_exp(t, in[3]), /* with a z above 0 */
            .final_state = &final_state,
        });
    return op_concat(t, op_reshape(t, out, shape(tensor_count(out))),
                     op_reshape(t, final_state, shape(tensor_count(final_state))), 0);
}

/* Relu is left out: differences across its corner say nothing. */
START_TEST(gradients_of_options)
{
    static Options options;
    for (options.form = FORM_BEST; options.form <= FORM_QUADRATIC; options.form++) {
        options.features = FEATURES_ELU_PLUS_ONE;
        options.lengths = true;
        check_gradient(checked_options, &options, shape(2, 9, 2, 3), shape(2, 9, 2, 3),
                       shape(2, 9, 2, 4), shape(2, 2, 3, 5));
        options.features = FEATURES_SOFTPLUS;
        options.lengths = false;
        options.offsets = true;
        check_gradient(checked_options, &options, shape(1, 9, 2, 3), shape(1, 9, 2, 3),
                       shape(1, 9, 2, 4), shape(3, 2, 3, 5));
        options.offsets = false;
    }
}
END_TEST

START_TEST(gradients)
{
    static Real large_eps = (Real)0.1;
    check_gradient(checked_causal, &large_eps, shape(2, 5, 2, 3), shape(2, 5, 2, 3),
                   shape(2, 5, 2, 4));
    check_gradient(checked_causal, &large_eps, shape(1, 19, 1, 5), shape(1, 19, 1, 5),
                   shape(1, 19, 1, 2));
    check_gradient(checked_causal, &large_eps, shape(1, 3, 1, 17), shape(1, 3, 1, 17),
                   shape(1, 3, 1, 9));
    check_gradient(checked_packed, &large_eps, shape(2, 5, 6, 3));
    check_gradient(checked_same, &large_eps, shape(2, 5, 2, 4));
    check_gradient(checked_twice, &large_eps, shape(2, 5, 2, 3), shape(2, 5, 2, 3),
                   shape(2, 5, 2, 19));
    check_gradient(checked_linear, NULL, shape(2, 5, 2, 3), shape(2, 4, 2, 3), shape(2, 4, 2, 5));
    check_gradient(checked_linear, &large_eps, shape(2, 5, 2, 3), shape(2, 4, 2, 3),
                   shape(2, 4, 2, 5));
    check_gradient(checked_linear_packed, &large_eps, shape(2, 5, 6, 3));
    check_gradient(checked_linear_same, &large_eps, shape(2, 5, 2, 4));
    check_gradient(checked_linear_twice, &large_eps, shape(2, 5, 2, 3), shape(2, 5, 2, 3),
                   shape(2, 5, 2, 4));
}
END_TEST

/* -------------------------------------------------------------------------------------- the rules */

/* Copies head columns of three tensors side by side: [B, N, 3 H, D]. */
static Real *side_by_side(const Real *const *parts, int64_t rows, int64_t columns)
{
    Real *packed = malloc((size_t)(3 * rows * columns) * sizeof(Real));
    for (int64_t row = 0; row < rows; row++)
        for (int64_t part = 0; part < 3; part++)
            memcpy(packed + (3 * row + part) * columns, parts[part] + row * columns,
                   (size_t)columns * sizeof(Real));
    return packed;
}

static void assert_packed_equals_separate(Case c)
{
    Values v = inputs(&c);
    compute(&c, &v);
    const int64_t rows = c.B * c.N, columns = c.H * c.D;
    Real *packed = side_by_side((const Real *[]){ v.query, v.key, v.value }, rows, columns);
    Real *expected = side_by_side((const Real *[]){ v.dquery, v.dkey, v.dvalue }, rows, columns);
    Tensor *qkv = tape_variable(tape, packed, shape(c.B, c.N, 3 * c.H, c.D));
    Tensor *out = attend(&c, qkv, NULL, NULL);
    tape_backward_from(tape, out, tape_input(tape, v.dout, out->shape));
    ck_assert_mem_eq(test_values(out), v.out, (size_t)outs_of(&c) * sizeof(Real));
    ck_assert_mem_eq(test_values(tensor_gradient(qkv)), expected,
                     (size_t)(3 * rows * columns) * sizeof(Real));
    tape_reset(tape);
    free(packed);
    free(expected);
}

START_TEST(packed_equals_separate)
{
    assert_packed_equals_separate((Case){ 2, 21, 21, 3, 20, 20, true, false, .eps = 1e-6 });
    assert_packed_equals_separate((Case){ 2, 40, 40, 2, 32, 32, true, false, .eps = 1e-6 });
    assert_packed_equals_separate((Case){ 2, 21, 21, 3, 20, 20, false, true, .eps = 1e-6 });
}
END_TEST

/* Each of the three alone wants a gradient: it gets what it gets with the others. */
static void assert_gradients_alone(Case c)
{
    Values all = inputs(&c);
    compute(&c, &all);
    const Real *values[] = { all.query, all.key, all.value };
    const Real *expected[] = { all.dquery, all.dkey, all.dvalue };
    const Shape shapes[] = { shape(c.B, c.N, c.H, c.D), shape(c.B, c.keys, c.H, c.D),
                             shape(c.B, c.keys, c.H, c.M) };
    for (int wanted = 0; wanted < 3; wanted++) {
        Tensor *t[3];
        for (int part = 0; part < 3; part++)
            t[part] = part == wanted ? tape_variable(tape, values[part], shapes[part])
                                     : tape_input(tape, values[part], shapes[part]);
        Tensor *out = attend(&c, t[0], t[1], t[2]);
        tape_backward_from(tape, out, tape_input(tape, all.dout, out->shape));
        ck_assert_mem_eq(test_values(tensor_gradient(t[wanted])), expected[wanted],
                         (size_t)tensor_count(t[wanted]) * sizeof(Real));
        tape_reset(tape);
    }
}

START_TEST(gradients_alone)
{
    assert_gradients_alone((Case){ 2, 21, 21, 3, 20, 33, true, false, .eps = 1e-6 });
    assert_gradients_alone((Case){ 2, 21, 9, 3, 20, 33, false, true, .eps = 1e-6 });
}
END_TEST

/* No position sees later ones: changing the last 20 leaves the bits of those before. */
START_TEST(causality)
{
    Case c = { 1, 60, 60, 2, 12, 12, true, false, .eps = 1e-6 };
    Values before = inputs(&c), after = before;
    compute(&c, &before);
    after.query = test_values(tape_input(tape, before.query, shape(queries_of(&c))));
    after.key = test_values(tape_input(tape, before.key, shape(keys_of(&c))));
    after.value = test_values(tape_input(tape, before.value, shape(values_of(&c))));
    const int64_t start = 40 * c.H * c.D;
    for (int64_t i = start; i < queries_of(&c); i++) {
        after.query[i] += 1;
        after.key[i] -= 2;
        after.value[i] *= 3;
    }
    compute(&c, &after);
    ck_assert_mem_eq(after.out, before.out, (size_t)start * sizeof(Real));
    for (int64_t i = start; i < outs_of(&c); i++)
        ck_assert(after.out[i] != before.out[i]);
}
END_TEST

/* Keys past a sequence's length count for nothing, whatever they hold, and get gradients of 0. */
static void assert_spoilt_keys_do_not_count(Case c)
{
    Values clean = inputs(&c), spoilt = clean;
    compute(&c, &clean);
    spoilt.key = test_values(tape_input(tape, clean.key, shape(keys_of(&c))));
    spoilt.value = test_values(tape_input(tape, clean.value, shape(values_of(&c))));
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t j = key_count(&c, b); j < c.keys; j++) {
            spoilt.key[at(&c, b, c.keys, j, 0, c.D)] = NAN;
            spoilt.value[at(&c, b, c.keys, j, 0, c.M)] = INFINITY;
        }
    compute(&c, &spoilt);
    ck_assert_mem_eq(spoilt.out, clean.out, (size_t)outs_of(&c) * sizeof(Real));
    ck_assert_mem_eq(spoilt.dkey, clean.dkey, (size_t)keys_of(&c) * sizeof(Real));
    ck_assert_mem_eq(spoilt.dvalue, clean.dvalue, (size_t)values_of(&c) * sizeof(Real));
    for (int64_t b = 0; b < c.B; b++)
        for (int64_t j = key_count(&c, b); j < c.keys; j++) {
            for (int64_t d = 0; d < c.D; d++)
                ck_assert(spoilt.dkey[at(&c, b, c.keys, j, 0, c.D) + d] == 0);
            for (int64_t m = 0; m < c.M; m++)
                ck_assert(spoilt.dvalue[at(&c, b, c.keys, j, 0, c.M) + m] == 0);
        }
}

START_TEST(keys_past_the_length_do_not_count)
{
    assert_spoilt_keys_do_not_count((Case){ 2, 6, 10, 1, 3, 4, false, true, .eps = 1e-6 });
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++)
        assert_spoilt_keys_do_not_count((Case){ 3, 40, 40, 1, 3, 4, true, true, .eps = 1e-6,
                                                .form = form, .state = true, .used = BOTH });
}
END_TEST

/* Not-a-number at position 20 of one head reaches its later positions, and those only. */
START_TEST(not_a_number_passes_through)
{
    Case c = { 1, 40, 40, 2, 5, 5, true, false, .eps = 1e-6 };
    Values v = inputs(&c);
    v.key[at(&c, 0, c.N, 20, 1, c.D) + 2] = NAN;
    compute(&c, &v);
    for (int64_t i = 0; i < c.N; i++)
        for (int64_t h = 0; h < c.H; h++)
            for (int64_t m = 0; m < c.M; m++)
                ck_assert_int_eq(isnan(v.out[at(&c, 0, c.N, i, h, c.M) + m]) != 0,
                                 h == 1 && i >= 20);
    ck_assert(isnan(v.dkey[at(&c, 0, c.N, 20, 1, c.D) + 2]));
    v = inputs(&c);
    v.query[at(&c, 0, c.N, 20, 0, c.D)] = NAN;
    compute(&c, &v);
    for (int64_t i = 0; i < c.N; i++)
        ck_assert_int_eq(isnan(v.out[at(&c, 0, c.N, i, 0, c.M)]) != 0, i == 20);
    ck_assert(isnan(v.dquery[at(&c, 0, c.N, 20, 0, c.D)]));
}
END_TEST

/* The maps over their whole range: alone, a position's weight is p = phi(q) phi(k), and with eps = 1
 * and the value 1 out is p / (p + 1). */
static void assert_map(FeatureMap features, double allowed)
{
    const Real one = 1;
    const bool falls = features == FEATURES_ELU_PLUS_ONE || features == FEATURES_SOFTPLUS;
    const LinearAttention options = { .features = features, .eps = 1 };
    for (double x = -80; x < 80; x += 0.37) {
        const Real query = (Real)x, key = falls ? -query : query;
        Shape single = shape(1, 1, 1, 1);
        Tensor *q = tape_input(tape, &query, single), *k = tape_input(tape, &key, single);
        Tensor *v = tape_input(tape, &one, single);
        double p = phi(features, query) * phi(features, key), expected = p / (p + 1);
        double causal_out = tensor_item(op_causal_linear_attention(tape, q, k, v, options));
        double linear_out = tensor_item(op_linear_attention(tape, q, k, v, options));
        ck_assert_double_le(fabs(causal_out - expected), allowed * expected + 1e-38);
        ck_assert_double_le(fabs(linear_out - expected), allowed * expected + 1e-38);
        tape_reset(tape);
    }
}

START_TEST(the_map_is_exact)
{
    for (FeatureMap f = FEATURES_ELU_PLUS_ONE; f <= FEATURES_IDENTITY; f++)
        assert_map(f, sizeof(Real) == sizeof(float) ? 6e-7 : 1e-14);
}
END_TEST

/* With hardly any eps the first position's result is its value. */
START_TEST(eps_may_be_tiny)
{
    Case c = { 1, 8, 8, 1, 4, 4, true, false, .eps = 1e-30 };
    Values v = inputs(&c);
    compute(&c, &v);
    assert_close(v.out, v.value, 4, in_three_products(c.causal) ? 1e-5 : 1e-6);
}
END_TEST

/* Nothing is kept for backward but out and one number a position and head. */
START_TEST(memory_is_linear)
{
    Device *device = test_device();
    for (int64_t N = 64; N <= 1024; N *= 4) {
        Case c = { 1, N, N, 2, 16, 16, true, false, .eps = 1e-6 };
        Values v = inputs(&c);
        Tensor *query = tape_variable(tape, v.query, shape(1, N, 2, 16));
        Tensor *key = tape_variable(tape, v.key, shape(1, N, 2, 16));
        Tensor *value = tape_variable(tape, v.value, shape(1, N, 2, 16));
        size_t before = device_memory(device).current;
        attend(&c, query, key, value);
        size_t kept = device_memory(device).current - before;
        size_t wanted = (size_t)(outs_of(&c) + N * 2) * sizeof(Real);
        /* the pool rounds up by an eighth at most */
        ck_assert_uint_ge(kept, wanted);
        ck_assert_uint_le(kept, wanted + wanted / 8);
        tape_reset(tape);
    }
}
END_TEST

/* On the CPU beside inputs, results and gradients: one number a position and head, kept; for D = 32 half
 * as many for the states at the segments' borders; and little that does not grow with N. */
START_TEST(scratch_memory_is_small)
{
    Device *device = test_device();
    if (device_is_cuda(device))
        return;
    device_set_threads(2);
    for (int64_t N = 2048; N <= 32768; N *= 4) {
        const Case c = { 1, N, N, 2, 32, 32, true, false, .eps = 1e-6 };
        const Shape x = shape(1, N, 2, 32);
        const Values v = inputs(&c);
        Tensor *query = tape_variable(tape, v.query, x), *key = tape_variable(tape, v.key, x);
        Tensor *value = tape_variable(tape, v.value, x), *upstream = tape_input(tape, v.dout, x);
        const size_t before = device_memory(device).current;
        device_reset_peak(device);
        tape_backward_from(tape, attend(&c, query, key, value), upstream);
        const size_t results = 4 * (size_t)outs_of(&c) * sizeof(Real);
        const size_t beside = device_memory(device).peak - before - results;
        const size_t wanted = (size_t)(N * 2 * 8 / 5 + (1 << 15)) * sizeof(Real);
        ck_assert_uint_le(beside, wanted + wanted / 8); /* as the pool rounds up */
        tape_reset(tape);
    }
}
END_TEST

START_TEST(misuse)
{
    Tensor *t[6];
    const Shape shapes[] = { shape(2, 5, 2, 3), shape(2, 5, 2, 4), shape(2, 4, 2, 3),
                             shape(2, 5, 6),    shape(1, 5, 2, 3), shape(2, 5, 3, 4) };
    for (int i = 0; i < 6; i++)
        t[i] = tape_input(tape, test_normal(1, shape_count(shapes[i])), shapes[i]);
    assert_raises("op_causal_linear_attention: query is NULL",
                  op_causal_linear_attention(tape, NULL, t[0], t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: query is [2,5,6], expected four axes, [B, N, H, D]",
                  op_causal_linear_attention(tape, t[3], t[0], t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: key is [2,5,6], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[3], t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: key is [2,5,2,4], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[1], t[0], with_eps(eps)));
    assert_raises("op_linear_attention: key is [1,5,2,3], expected [B, N, H, D] with the "
                  "B, H, D of query, [2,5,2,3]",
                  op_linear_attention(tape, t[0], t[4], t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: key is [2,4,2,3], expected as many positions as "
                  "query, [2,5,2,3], has",
                  op_causal_linear_attention(tape, t[0], t[2], t[2], with_eps(eps)));
    assert_raises("op_linear_attention: value is [2,5,2,3], expected [B, N, H, M] with the "
                  "B, N, H of key, [2,4,2,3]",
                  op_linear_attention(tape, t[0], t[2], t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: value is [2,5,3,4], expected [B, N, H, M] with the "
                  "B, N, H of key, [2,5,2,3]",
                  op_causal_linear_attention(tape, t[0], t[0], t[5], with_eps(eps)));
    assert_raises("op_causal_linear_attention: value is NULL; give both key and value, or neither "
                  "when query holds all three",
                  op_causal_linear_attention(tape, t[0], t[0], NULL, with_eps(eps)));
    assert_raises("op_linear_attention: key is NULL; give both key and value, or neither when "
                  "query holds all three",
                  op_linear_attention(tape, t[0], NULL, t[0], with_eps(eps)));
    assert_raises("op_causal_linear_attention: query without key and value must hold all three, "
                  "[B, N, 3 H, D], but is [2,5,2,3]: its third size is no multiple of 3",
                  op_causal_linear_attention(tape, t[0], NULL, NULL, with_eps(eps)));
    assert_raises(
        "op_causal_linear_attention: eps is -1, expected more than 0, or 0 for the default",
        op_causal_linear_attention(tape, t[0], t[0], t[0], with_eps(-1)));
    assert_raises("op_linear_attention: eps is nan, expected more than 0, or 0 for the default",
                  op_linear_attention(tape, t[0], t[0], t[0], with_eps((Real)NAN)));
}
END_TEST

START_TEST(misuse_of_key_lengths)
{
    const Shape row = shape(2, 5, 2, 3);
    Tensor *x = tape_input(tape, test_normal(1, shape_count(row)), row);
    const int32_t lengths[] = { 5, 6, 5 };
    Tensor *too_long = tape_input_i32(tape, lengths, shape(2));
    Tensor *zero = tape_input_i32(tape, (const int32_t[]){ 0, 1 }, shape(2));
    Tensor *three = tape_input_i32(tape, lengths, shape(3));
    assert_raises("op_linear_attention: key_lengths[1] is 6, expected 1 to 5, the number of keys",
                  op_linear_attention(tape, x, x, x, with_lengths(too_long)));
    assert_raises("op_linear_attention: key_lengths[0] is 0, expected 1 to 5, the number of keys",
                  op_linear_attention(tape, x, x, x, with_lengths(zero)));
    assert_raises("op_linear_attention: key_lengths has shape [3], expected [2]: one length a "
                  "sequence",
                  op_linear_attention(tape, x, x, x, with_lengths(three)));
    test_expect_error();
    if (!setjmp(test_error_jump)) {
        op_linear_attention(tape, x, x, x, with_lengths(x));
        ck_abort_msg("lengths of Real type are taken");
    }
    tapegrad_on_error(NULL, NULL);
}
END_TEST

START_TEST(misuse_of_options)
{
    const Shape row = shape(1, 5, 2, 3);
    Tensor *x = tape_input(tape, test_normal(1, shape_count(row)), row);
    Tensor *two = tape_input(tape, test_normal(1, 60), shape(2, 5, 2, 3)), *none = NULL;
#define ATTEND(x, ...) op_causal_linear_attention(tape, x, x, x, (LinearAttention){ __VA_ARGS__ })
    assert_raises("op_causal_linear_attention: features is 4, expected FEATURES_ELU_PLUS_ONE to "
                  "FEATURES_IDENTITY; apply another map's operation to queries and keys, and "
                  "FEATURES_IDENTITY here",
                  ATTEND(x, .features = (FeatureMap)4));
    assert_raises("op_causal_linear_attention: form is 5, expected FORM_BEST to FORM_QUADRATIC",
                  ATTEND(x, .form = (AttentionForm)5));
    assert_raises("op_causal_linear_attention: chunk is -1, expected 1 or more, or 0 for the "
                  "default",
                  ATTEND(x, .chunk = -1));

    Tensor *fine = tape_input_i32(tape, (const int32_t[]){ 0, 2, 5 }, shape(3));
    Tensor *falling = tape_input_i32(tape, (const int32_t[]){ 0, 3, 2, 5 }, shape(4));
    Tensor *late = tape_input_i32(tape, (const int32_t[]){ 1, 5 }, shape(2));
    Tensor *early = tape_input_i32(tape, (const int32_t[]){ 0, 4 }, shape(2));
    Tensor *single = tape_input_i32(tape, (const int32_t[]){ 5 }, shape(1));
    assert_raises("op_causal_linear_attention: offsets[2] is 2, expected ascending numbers from 0 "
                  "to 5, the number of positions",
                  ATTEND(x, .offsets = falling));
    assert_raises("op_causal_linear_attention: offsets[0] is 1, expected ascending numbers from 0 "
                  "to 5, the number of positions",
                  ATTEND(x, .offsets = late));
    assert_raises("op_causal_linear_attention: offsets[1] is 4, expected ascending numbers from 0 "
                  "to 5, the number of positions",
                  ATTEND(x, .offsets = early));
    assert_raises("op_causal_linear_attention: offsets has shape [1], expected [S + 1]",
                  ATTEND(x, .offsets = single));
    assert_raises("op_causal_linear_attention: offsets: key_lengths are given too; with offsets "
                  "every key counts",
                  ATTEND(x, .offsets = fine, .key_lengths = single));
    assert_raises("op_causal_linear_attention: offsets: query is [2,5,2,3], expected one sequence, "
                  "[1, N, H, D], which they cut",
                  ATTEND(two, .offsets = fine));

    assert_raises("op_causal_linear_attention: state is [1,5,2,3], expected [1,2,3,4]: "
                  "[sequences, H, D, M + 1]",
                  ATTEND(x, .state = x));
    assert_raises("op_causal_linear_attention: state is [1,5,2,3], expected [2,2,3,4]: "
                  "[sequences, H, D, M + 1]",
                  ATTEND(x, .state = x, .offsets = fine));
#undef ATTEND
#define ATTEND(...) op_linear_attention(tape, x, x, x, (LinearAttention){ __VA_ARGS__ })
    const char *sentence = "op_linear_attention: form, chunk, offsets, state and final_state are "
                           "options of causal linear attention";
    assert_raises(sentence, ATTEND(.form = FORM_CHUNKED));
    assert_raises(sentence, ATTEND(.chunk = 16));
    assert_raises(sentence, ATTEND(.offsets = fine));
    assert_raises(sentence, ATTEND(.state = x));
    assert_raises(sentence, ATTEND(.final_state = &none));
#undef ATTEND
}
END_TEST

static void make_tape(void)
{
    tape = tape_new(test_device());
}

int main(void)
{
    return run_tests_after("attention", make_tape,
                           (const TTest *const[]){ causal_matches_the_quadratic_oracle,
                                                   linear_matches_the_quadratic_oracle,
                                                   feature_maps,
                                                   causal_key_lengths,
                                                   offsets,
                                                   states,
                                                   forms,
                                                   forms_of_long_sequences,
                                                   cut_sequences_equal_the_whole,
                                                   results_do_not_depend_on_the_threads,
                                                   reference_vectors,
                                                   gradients,
                                                   gradients_of_options,
                                                   packed_equals_separate,
                                                   gradients_alone,
                                                   causality,
                                                   keys_past_the_length_do_not_count,
                                                   not_a_number_passes_through,
                                                   the_map_is_exact,
                                                   eps_may_be_tiny,
                                                   memory_is_linear,
                                                   scratch_memory_is_small,
                                                   misuse,
                                                   misuse_of_key_lengths,
                                                   misuse_of_options,
                                                   NULL });
}
