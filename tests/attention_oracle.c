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
    if (tape_precision(tape) != PRECISION_BF16)
        return op_causal_linear_attention(tape, query, key, value, options, final_state);
    query = op_cast(tape, query, TENSOR_BF16);
    key = op_cast(tape, key, TENSOR_BF16);
    value = op_cast(tape, value, TENSOR_BF16);
    Tensor *out = op_causal_linear_attention(tape, query, key, value, options, final_state);
    return op_cast(tape, out, TENSOR_REAL);
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

int64_t at(const Case *c, int64_t b, int64_t positions, int64_t n, int64_t h, int64_t columns)
{
    return ((b * positions + n) * c->H + h) * columns;
}

/* ---------------------------------------------------------------------- comparison with plain */

void compute_plain(const Case *c, Values *v)
{
    Tape *compared = tape;
    tape = tape_new(device_open("plain"));
    compute(c, v);
    tape_free(tape);
    tape = compared;
}

void assert_same(const Case *c, const Values *actual, const Values *expected)
{
    const bool bf16 = tape_precision(tape) == PRECISION_BF16;
    const double allowed = bf16 ? BF16_TOLERANCE : ORACLE_TOLERANCE;
    const double canceled = !bf16 && in_three_products(c->causal) ? 1e-4 : allowed;
    assert_close(actual->out, expected->out, outs_of(c), allowed);
    if (c->used != OUT)
        assert_close(actual->final_state, expected->final_state, states_of(c), allowed);
    assert_close(actual->dquery, expected->dquery, queries_of(c), canceled);
    assert_close(actual->dkey, expected->dkey, keys_of(c), canceled);
    assert_close(actual->dvalue, expected->dvalue, values_of(c), allowed);
    if (c->state)
        assert_close(actual->dstate, expected->dstate, states_of(c), allowed);
}

void assert_plain(Case c)
{
    Values actual = inputs(&c), expected = actual;
    compute(&c, &actual);
    compute_plain(&c, &expected);
    assert_same(&c, &actual, &expected);
}
