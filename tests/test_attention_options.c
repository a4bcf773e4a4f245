/* The options of linear attention: feature maps, key lengths, offsets, states, forms; against the
 * oracle, finite differences and each other. */
#include "tests/attention_oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* With relu all weights of a position may be 0: eps keeps the normalizer away from 0. */
static double eps_for(FeatureMap features)
{
    return features == FEATURE_MAP_RELU ? 0.5 : 1e-6;
}

TEST(feature_maps)
{
    for (FeatureMap f = FEATURE_MAP_ELU_PLUS_ONE; f <= FEATURE_MAP_IDENTITY; f++) {
        const double e = eps_for(f);
        assert_plain((Case){ 2, 37, 37, 3, 5, 7, true, false, .eps = e, .features = f });
        assert_plain((Case){ 1, 150, 150, 2, 32, 40, true, false, .eps = e, .features = f });
        assert_plain((Case){ 2, 20, 31, 3, 5, 7, false, false, .eps = e, .features = f });
        assert_plain((Case){ 5, 70, 64, 2, 32, 40, false, true, .eps = e, .features = f });
    }
}

/* Sequence lengths around the kernels' blocks of positions. */
TEST(causal_key_lengths)
{
    static const int64_t sizes[][5] = {
        /* B, N, H, D, M */
        { 1, 1, 1, 2, 1 },  { 3, 15, 2, 3, 5 },   { 7, 20, 1, 16, 16 },
        { 9, 33, 3, 8, 8 }, { 30, 40, 1, 5, 20 }, { 4, 300, 2, 32, 32 },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t *s = sizes[i];
        for (Used used = OUT; used <= FINAL_STATE; used++)
            assert_plain((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, true, .eps = 0.5,
                                 .state = used >= BOTH, .used = used });
    }
}

/* Empty sequences, one of a single position, and sequence boundaries beside block boundaries; in
 * the last array there is one sequence only. */
static const int32_t offsets_of_70[] = { 0, 0, 1, 16, 16, 16, 33, 70, 70 };
static const int32_t offsets_of_300[] = { 0, 128, 257, 300 };
static const int32_t one_sequence[] = { 0, 70 };

TEST(offsets)
{
    for (Used used = OUT; used <= FINAL_STATE; used++) {
        Case c = {
            1, 70, 70, 2, 5, 7, true, false, .eps = 1e-6, .state = used >= BOTH, .used = used
        };
        c.offsets = offsets_of_70;
        c.sequences = 8;
        assert_plain(c);
        c.H = 9;
        assert_plain(c);
        c.D = c.M = 32;
        assert_plain(c);
        c.offsets = one_sequence;
        c.sequences = 1;
        assert_plain(c);
        c.offsets = offsets_of_300;
        c.sequences = 3;
        c.N = c.keys = 300;
        assert_plain(c);
    }
}

TEST(states)
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
                assert_plain((Case){ s[0], s[1], s[1], s[2], s[3], s[4], true, false, .eps = 0.5,
                                     .state = given, .used = used });
    }
}

/* One initial state for two calls: its gradient is the sum of both, in every element. */
TEST(a_state_used_twice_gets_both_gradients)
{
    const Case c = { 1, 200, 200, 2, 32, 32, true, false, .eps = 1e-6, .state = true };
    const Values v = inputs(&c);
    const Shape row = shape(c.B, c.N, c.H, c.D);
    Real *gradients[2];
    for (int calls = 1; calls <= 2; calls++) {
        Tensor *query = tape_input(tape, v.query, row), *key = tape_input(tape, v.key, row);
        Tensor *value = tape_input(tape, v.value, row);
        Tensor *state = tape_variable(tape, v.state, state_shape(&c));
        Tensor *out = attend_from(&c, query, key, value, state, NULL);
        if (calls == 2)
            out = op_add(tape, out, attend_from(&c, query, key, value, state, NULL));
        tape_backward_from(tape, out, tape_input(tape, v.dout, row));
        gradients[calls - 1] = test_values(tensor_gradient(state));
        tape_reset(tape);
    }
    for (int64_t i = 0; i < states_of(&c); i++)
        gradients[0][i] *= 2;
    assert_close(gradients[1], gradients[0], states_of(&c), 1e-6);
}

/* Every form, with its default chunk, chunks that divide no length, and chunks longer
 * than the sequence. */
static void assert_forms(Case c)
{
    static const int64_t chunks[] = { 0, 1, 5, 16, 33, 1000 };
    Values expected = inputs(&c);
    compute_plain(&c, &expected);
    for (c.form = FORM_BEST; c.form <= FORM_QUADRATIC; c.form++)
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
            c.chunk = chunks[i];
            Values actual = inputs(&c);
            compute(&c, &actual);
            assert_same(&c, &actual, &expected);
        }
}

TEST(forms)
{
    assert_forms((Case){ 2, 1, 1, 1, 3, 2, true, false, .eps = 0.5 });
    assert_forms(
        (Case){ 2, 45, 45, 2, 5, 7, true, false, .eps = 1e-6, .state = true, .used = BOTH });
    assert_forms((Case){ 1, 130, 130, 3, 16, 40, true, false, .eps = 1e-6 });
    assert_forms(
        (Case){ 3, 45, 45, 2, 20, 7, true, true, .eps = 1e-6, .state = true, .used = BOTH });
    assert_forms((Case){ 3, 45, 45, 2, 5, 7, true, true, .eps = 1e-6, .used = FINAL_STATE });
    assert_forms((Case){ 1, 70, 70, 2, 5, 20, true, false, .eps = 1e-6,
                         .features = FEATURE_MAP_SOFTPLUS, .state = true, .used = BOTH,
                         .sequences = 8, .offsets = offsets_of_70 });
}

#ifndef TAPEGRAD_DOUBLE
/* bf16 activations with odd lengths and chunks, padded heads, key lengths, states, offsets. */
TEST(forms_in_bf16)
{
    if (!test_has_bf16())
        return;
    tape_set_precision(tape, PRECISION_BF16);
    assert_forms((Case){ 2, 45, 45, 2, 64, 64, true, true, .eps = 1e-6 });
    assert_forms(
        (Case){ 1, 70, 70, 1, 70, 100, true, false, .eps = 1e-6, .state = true, .used = BOTH });
    assert_forms((Case){ 1, 70, 70, 2, 128, 64, true, false, .eps = 1e-6, .state = true,
                         .used = BOTH, .sequences = 8, .offsets = offsets_of_70 });
}

/* A NaN in a key or value reaches no earlier position; on CUDA it spoils its tile of 16. */
TEST(nan_in_bf16)
{
    const Case c = { 1, 40, 40, 2, 64, 80, true, false, .eps = 1e-6, .form = FORM_CHUNKED };
    if (!test_has_bf16())
        return;
    tape_set_precision(tape, PRECISION_BF16);
    for (int64_t n = 18; !device_is_cuda(test_device()) && n < 22; n++) {
        Values v = inputs(&c);
        if (n % 4 < 2)
            v.key[at(&c, 0, c.N, n, 1, c.D) + 2] = NAN;
        else
            v.value[at(&c, 0, c.N, n, 1, c.M) + 2] = NAN;
        compute(&c, &v);
        for (int64_t i = 0; i < c.N; i++)
            for (int64_t h = 0; h < c.H; h++)
                ck_assert_int_eq(isnan(v.out[at(&c, 0, c.N, i, h, c.M) + 2]) != 0,
                                 h == 1 && i >= n);
    }
}
#endif

/* Long enough for the segments and blocks of every form, also on tensor cores. */
/* Attention number `kind` of operands of which those whose bits are set are bf16. */
static Real *attend_with_bf16(int kind, int bf16)
{
    static const Real betas[10] = { 0.5, 1, 0.25, 0.5, 1, 0.75, 1, 0.5, 1, 0.5 };
    const Shape row = shape(1, 5, 2, 3);
    Tensor *operand[3], *out = NULL;
    for (int i = 0; i < 3; i++) {
        operand[i] = tape_input(tape, test_normal((uint64_t)i + 1, 30), row);
        if (bf16 >> i & 1)
            operand[i] = op_cast(tape, operand[i], TENSOR_BF16);
    }
    Tensor *q = operand[0], *k = operand[1], *v = operand[2];
    switch (kind) {
    case 0:
        out = op_causal_linear_attention(tape, q, k, v,
                                         (CausalLinearAttentionOptions){ .eps = 1e-6 }, NULL);
        break;
    case 1:
        out = op_linear_attention(tape, q, k, v, (LinearAttentionOptions){ .eps = 1e-6 });
        break;
    case 2:
        out = op_softmax_attention(tape, q, k, v, (SoftmaxAttentionOptions){ .mask = NULL });
        break;
#ifdef TAPEGRAD_DELTA_H
    case 3:
        out = op_delta_rule(tape, q, k, v, tape_input(tape, betas, shape(1, 5, 2)),
                            (DeltaRuleOptions){ .offsets = NULL }, NULL);
        break;
#endif
    default:
        break;
    }
    Real *values = out ? test_values(op_cast(tape, out, TENSOR_REAL)) : NULL;
    if (out)
        ck_assert_int_eq(out->type, TENSOR_BF16);
    tape_reset(tape);
    return values;
}

/* Operands of which one is bf16 are all converted, so the result is that of bf16 operands. */
TEST(operands_of_two_dtypes_become_bf16)
{
    if (!test_has_bf16())
        return;
    tape_set_precision(tape, PRECISION_BF16);
    for (int kind = 0; kind < 4; kind++) {
        const Real *expected = attend_with_bf16(kind, 7);
        for (int bf16 = 1; bf16 < 7 && expected; bf16++)
            assert_identical(attend_with_bf16(kind, bf16), expected, 30);
    }
}

TEST(forms_of_long_sequences)
{
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++) {
        assert_plain((Case){ 1, 600, 600, 1, 32, 64, true, false, .eps = 1e-6, .form = form,
                             .state = true, .used = BOTH });
        assert_plain((Case){ 2, 400, 400, 2, 64, 32, true, true, .eps = 1e-6, .form = form });
        assert_plain((Case){ 1, 300, 300, 2, 32, 32, true, false, .eps = 1e-6, .form = form,
                             .sequences = 3, .offsets = offsets_of_300 });
    }
}

/* A sequence cut into split, each of which starts from the final state of the previous one, gives
 * the results of the whole sequence, forward and backward. */
static void assert_split_equals_whole(Case c, const int64_t *boundaries, int count)
{
    Values whole = inputs(&c), split = whole;
    compute(&c, &whole);
    Tensor *query = tape_variable(tape, split.query, shape(c.B, c.N, c.H, c.D));
    Tensor *key = tape_variable(tape, split.key, shape(c.B, c.keys, c.H, c.D));
    Tensor *value = tape_variable(tape, split.value, shape(c.B, c.keys, c.H, c.M));
    Tensor *first = c.state ? tape_variable(tape, split.state, state_shape(&c)) : NULL;
    Tensor *out = NULL, *state = first;
    for (int i = 0; i <= count; i++) {
        const int64_t start = i ? boundaries[i - 1] : 0,
                      length = (i < count ? boundaries[i] : c.N) - start;
        Tensor *segment = attend_from(&c, op_slice(tape, query, 1, start, length),
                                      op_slice(tape, key, 1, start, length),
                                      op_slice(tape, value, 1, start, length), state, &state);
        out = out ? op_concat(tape, (Tensor *[]){ out, segment }, 2, 1) : segment;
    }
    tensor_keep(out);
    tensor_keep(state);
    backward(&c, &split, out, state);
    split.out = test_values(out);
    split.final_state = test_values(state);
    split.dquery = test_values(tensor_gradient(query));
    split.dkey = test_values(tensor_gradient(key));
    split.dvalue = test_values(tensor_gradient(value));
    split.dstate = values_or_zeros(first ? tensor_gradient(first) : NULL, states_of(&c));
    assert_same(&c, &split, &whole);
    tape_reset(tape);
}

TEST(split_sequences_equal_the_whole)
{
    static const int64_t boundaries[] = { 1, 17, 18, 34, 59 };
    for (AttentionForm form = FORM_BEST; form <= FORM_QUADRATIC; form++)
        for (Used used = OUT_OF_BOTH; used <= FINAL_STATE; used++) {
            Case c = { 2, 60, 60, 3, 7, 5, true, false, .eps = 1e-6, .form = form, .used = used };
            assert_split_equals_whole(c, boundaries, 5);
            c.state = true;
            assert_split_equals_whole(c, boundaries + 2, 1);
        }
}

TEST(misuse_of_options_raises)
{
    const Shape row = shape(1, 5, 2, 3);
    Tensor *x = tape_input(tape, test_normal(1, shape_count(row)), row);
    Tensor *two = tape_input(tape, test_normal(1, 60), shape(2, 5, 2, 3));
#define ATTEND(x, ...)                                                                             \
    op_causal_linear_attention(tape, x, x, x, (CausalLinearAttentionOptions){ __VA_ARGS__ }, NULL)
    assert_raises("op_causal_linear_attention: features is 4, expected FEATURE_MAP_ELU_PLUS_ONE to "
                  "FEATURE_MAP_IDENTITY",
                  ATTEND(x, .features = (FeatureMap)4));
    assert_raises("op_causal_linear_attention: form is 5, expected FORM_BEST to FORM_QUADRATIC",
                  ATTEND(x, .form = (AttentionForm)5));
    assert_raises("op_causal_linear_attention: chunk is -1, expected 1 or more, or 0 for the "
                  "default",
                  ATTEND(x, .chunk = -1));

#define STATE_OF(x, ...)                                                                           \
    op_causal_linear_state(tape, x, x, (CausalLinearAttentionOptions){ __VA_ARGS__ })
    Tensor *one_decay = tape_input(tape, (const Real[]){ -1 }, shape(1));
    assert_raises("op_causal_linear_state: form is 5, expected FORM_BEST to FORM_QUADRATIC",
                  STATE_OF(x, .form = (AttentionForm)5));
    assert_raises("op_causal_linear_state: chunk is -1, expected 1 or more, or 0 for the default",
                  STATE_OF(x, .chunk = -1));
    assert_raises("op_causal_linear_state: log_decay is [1], expected [2]: one per head",
                  STATE_OF(x, .log_decay = one_decay));
    assert_raises("op_causal_linear_attention: log_decay is [1], expected [2]: one per head",
                  ATTEND(x, .log_decay = one_decay));
#undef STATE_OF

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
    assert_raises("op_causal_linear_attention: offsets: lengths are given too, expected one of the "
                  "two",
                  ATTEND(x, .offsets = fine, .key_lengths = single));
    assert_raises("op_causal_linear_attention: offsets: query is [2,5,2,3], expected one sequence, "
                  "[1, N, ..], which they divide",
                  ATTEND(two, .offsets = fine));

    assert_raises("op_causal_linear_attention: state is [1,5,2,3], expected [1,2,3,4]: "
                  "[sequences, H, D, M + 1]",
                  ATTEND(x, .state = x));
    assert_raises("op_causal_linear_attention: state is [1,5,2,3], expected [2,2,3,4]: "
                  "[sequences, H, D, M + 1]",
                  ATTEND(x, .state = x, .offsets = fine));
#undef ATTEND
}

int main(void)
{
    setenv("TAPEGRAD_CUDA_EARLY", "1", 0); /* the emulation checks dependent launches */
    return test_main("attention_options", make_tape, NULL);
}
