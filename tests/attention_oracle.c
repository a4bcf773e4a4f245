#include "tests/attention_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

Tape *tape;

void make_tape(void)
{
    tape = tape_new(test_device());
}

bool in_three_products(bool causal)
{
    return causal && sizeof(Real) == sizeof(float) && device_is_cuda(test_device());
}

/* ------------------------------------------------------------------------------------ the cases */

int64_t key_count(const Case *c, int64_t b)
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

Tensor *attend_from(const Case *c, Tensor *query, Tensor *key, Tensor *value, Tensor *state,
                    Tensor **final_state)
{
    Tensor *key_lengths = length_tensor(c);
    if (!c->causal)
        return op_linear_attention(tape, query, key, value,
                                   (LinearAttentionOptions){ .features = c->features,
                                                             .eps = c->eps,
                                                             .key_lengths = key_lengths });
    const CausalLinearAttentionOptions options = { .features = c->features,
                                                   .eps = c->eps,
                                                   .key_lengths = key_lengths,
                                                   .form = c->form,
                                                   .chunk = c->chunk,
                                                   .offsets = offset_tensor(c),
                                                   .state = state };
    return op_causal_linear_attention(tape, query, key, value, options, final_state);
}

Tensor *attend(const Case *c, Tensor *query, Tensor *key, Tensor *value)
{
    return attend_from(c, query, key, value, NULL, NULL);
}

int64_t queries_of(const Case *c)
{
    return c->B * c->N * c->H * c->D;
}
int64_t keys_of(const Case *c)
{
    return c->B * c->keys * c->H * c->D;
}
int64_t values_of(const Case *c)
{
    return c->B * c->keys * c->H * c->M;
}
int64_t outs_of(const Case *c)
{
    return c->B * c->N * c->H * c->M;
}
Shape state_shape(const Case *c)
{
    return shape(c->offsets ? c->sequences : c->B, c->H, c->D, c->M + 1);
}
int64_t states_of(const Case *c)
{
    return shape_count(state_shape(c));
}

/* Positive and not near 0, as sums of features must be, and queries and keys of
 * the identity map. */
static void make_positive(Real *x, int64_t count, int64_t step)
{
    for (int64_t i = step - 1; i < count; i += step)
        x[i] = (Real)(fabs(x[i]) + 0.1);
}

Values inputs(const Case *c)
{
    Values v = { .query = test_normal(1, queries_of(c)),
                 .key = test_normal(2, keys_of(c)),
                 .value = test_normal(3, values_of(c)),
                 .state = test_normal(5, states_of(c)),
                 .dout = test_normal(4, outs_of(c)),
                 .dfinal_state = test_normal(6, states_of(c)) };
    if (c->features == FEATURE_MAP_IDENTITY) {
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
    return op_sum(tape, op_multiply(tape, x, tape_input(tape, y, x->shape)), ALL_AXES);
}

void backward(const Case *c, const Values *v, Tensor *out, Tensor *final_state)
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

Real *values_or_zeros(const Tensor *x, int64_t count)
{
    if (x)
        return test_values(x);
    Real *zeros = test_normal(0, count);
    memset(zeros, 0, (size_t)count * sizeof(Real));
    return zeros;
}

void compute(const Case *c, Values *v)
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

/* ----------------------------------------------------------------------------------- the oracle
 * One sequence and head, with every weight W_ij = phi(q_i).phi(k_j) where i sees j;
 * v~_j = [v_j, 1]; the initial state S~ = [S, z]; F = dL/dfinal_state:
 *     den_i = sum_j W_ij + a_i.z + eps               out_i = (sum_j W_ij v_j + S^T a_i) / den_i
 *     dnum~_i = [dout_i, -dout_i.out_i] / den_i      dW_ij = dnum~_i.v~_j
 *     da_i = sum_j dW_ij b_j + S~ dnum~_i            db_j = sum_i dW_ij a_i + F v~_j
 *     dv~_j = sum_i W_ij dnum~_i + F^T b_j           dS~ = sum_i a_i dnum~_i^T + F
 * In the code g is dnum~_i. */
double oracle_phi(FeatureMap features, double x)
{
    switch (features) {
    case FEATURE_MAP_RELU:
        return x > 0 ? x : 0;
    case FEATURE_MAP_SOFTPLUS:
        return fmax(x, 0) + log1p(exp(-fabs(x)));
    case FEATURE_MAP_IDENTITY:
        return x;
    default:
        return x > 0 ? x + 1 : exp(x);
    }
}

/* phi', the derivative of the feature map */
static double slope(FeatureMap features, double x)
{
    switch (features) {
    case FEATURE_MAP_RELU:
        return x > 0;
    case FEATURE_MAP_SOFTPLUS:
        return 1 / (1 + exp(-x));
    case FEATURE_MAP_IDENTITY:
        return 1;
    default:
        return x > 0 ? 1 : exp(x);
    }
}

/* One head of one sequence. Its positions are in a batch row of N positions. */
typedef struct Head {
    int64_t b, h;                /* batch row and head */
    int64_t first, end;          /* the sequence's positions in the row */
    int64_t keys;                /* number of valid keys, from first on */
    int64_t state;               /* offset of the initial state */
    double *features, *values;   /* b_j [keys, D], v~_j [keys, M + 1] */
    double *dfeatures, *dvalues; /* their gradients */
    double *dstate;              /* [D, M + 1] */
} Head;

int64_t at(const Case *c, int64_t b, int64_t positions, int64_t n, int64_t h, int64_t columns)
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
        a[d] = oracle_phi(c->features, v->query[query + d]);
    for (int64_t j = 0; j < seen; j++)
        for (int64_t d = 0; d < D; d++)
            W[j] += a[d] * s->features[j * D + d];
    double den = c->eps;
    for (int64_t m = c->M; m >= 0; m--) { /* the normalizer first */
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

/* The final state, and the gradients that flow through it. */
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
            s.features[j * D + d] = oracle_phi(c->features, v->key[key + j * key_stride + d]);
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

void oracle(const Case *c, Values *v)
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

void release(Values *v)
{
    free(v->out);
    free(v->final_state);
    free(v->dquery);
    free(v->dkey);
    free(v->dvalue);
    free(v->dstate);
}

void assert_same(const Case *c, const Values *actual, const Values *expected)
{
    const double cancelled = in_three_products(c->causal) ? 1e-4 : ORACLE_TOLERANCE;
    assert_close(actual->out, expected->out, outs_of(c), ORACLE_TOLERANCE);
    if (c->used != OUT)
        assert_close(actual->final_state, expected->final_state, states_of(c), ORACLE_TOLERANCE);
    assert_close(actual->dquery, expected->dquery, queries_of(c), cancelled);
    assert_close(actual->dkey, expected->dkey, keys_of(c), cancelled);
    assert_close(actual->dvalue, expected->dvalue, values_of(c), ORACLE_TOLERANCE);
    if (c->state)
        assert_close(actual->dstate, expected->dstate, states_of(c), ORACLE_TOLERANCE);
}

void assert_oracle(Case c)
{
    Values actual = inputs(&c), expected = actual;
    compute(&c, &actual);
    oracle(&c, &expected);
    assert_same(&c, &actual, &expected);
    release(&expected);
}
