/* Recurrent layers: op_lstm, op_gru, nn_lstm, nn_gru. */
#include "tests/support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static Tape *tape;
static Params *params;

static void begin(void)
{
    tape = tape_new(test_device());
    params = params_new(test_device(), 7);
}

static void end(void)
{
    tape_free(tape);
    params_free(params);
    ck_assert_uint_eq(device_memory(test_device()).current, 0);
}

/* a.b as a tensor */
static Tensor *inner(Tensor *a, Tensor *b)
{
    return op_sum(tape, op_multiply(tape, op_reshape(tape, a, b->shape), b), ALL_AXES);
}

/* ----------------------------------------------------------------------------- a layer, a stack */
enum { B = 3, N = 11, I = 4, H = 37 };

/* x, W_ih, W_hh, b_ih, b_hh, h, c of a layer of G gates */
typedef struct Layer {
    int64_t G;
    Tensor *x, *w[4], *h, *c;
} Layer;

static Layer layer_new(int64_t G)
{
    Layer layer = { .G = G, .x = test_variable(tape, 1, shape(B, N, I)) };
    layer.w[0] = test_variable(tape, 2, shape(G * H, I));
    layer.w[1] = op_scale(tape, test_variable(tape, 3, shape(G * H, H)), 0.2);
    layer.w[2] = test_variable(tape, 4, shape(G * H));
    layer.w[3] = test_variable(tape, 5, shape(G * H));
    layer.h = test_variable(tape, 6, shape(B, H));
    layer.c = test_variable(tape, 7, shape(B, H));
    for (int i = 0; i < 4; i++)
        tensor_keep(layer.w[i]);
    return layer;
}

static RecurrentWeights weights_from(Tensor *const *w)
{
    return (RecurrentWeights){ w[0], w[1], w[2], w[3] };
}

/* op_lstm or op_gru; state is h and c, which become the final ones. */
static Tensor *apply(const Layer *l, Tensor *x, Tensor *lengths, bool reverse, Tensor **state)
{
    if (l->G == 4)
        return op_lstm(tape, x, weights_from(l->w),
                       (LstmOptions){ lengths, state[0], state[1], reverse }, &state[0], &state[1]);
    return op_gru(tape, x, weights_from(l->w), (GruOptions){ lengths, state[0], reverse },
                  &state[0]);
}

/* out, the final state and the gradients of x, weights and the initial state */
static Outcome outcome_of(const Layer *l, Tensor *out, Tensor **state)
{
    Outcome outcome = { 0 };
    const int states = l->G == 4 ? 2 : 1;
    Tensor *loss = inner(out, tape_input(tape, test_normal(8, B * N * H), out->shape));
    test_note(&outcome, out);
    for (int s = 0; s < states; s++) {
        test_note(&outcome, state[s]);
        const Real *r = test_normal(9 + (uint64_t)s, B * H);
        loss = op_add(tape, loss, inner(state[s], tape_input(tape, r, shape(B, H))));
    }
    tape_backward(tape, loss);
    test_note(&outcome, tensor_gradient(l->x));
    for (int i = 0; i < 4; i++)
        test_note(&outcome, tensor_gradient(l->w[i]));
    test_note(&outcome, tensor_gradient(l->h));
    if (states == 2)
        test_note(&outcome, tensor_gradient(l->c));
    tape_reset(tape);
    return outcome;
}

static void assert_alike(const char *what, Outcome a, Outcome b)
{
    ck_assert_int_eq(a.count, b.count);
    for (int i = 0; i < a.count; i++) {
        ck_assert_int_eq(a.counts[i], b.counts[i]);
        const double error = relative_error(a.values[i], b.values[i], a.counts[i]);
        ck_assert_msg(error <= VALUE_TOLERANCE, "%s, tensor %d: error %g", what, i, error);
    }
}

static Outcome whole(int64_t G)
{
    const Layer l = layer_new(G);
    Tensor *state[2] = { l.h, l.c };
    Tensor *out = apply(&l, l.x, NULL, false, state);
    return outcome_of(&l, out, state);
}

/* Columns of gate g of x [B, G H] */
static Tensor *gate(Tensor *x, int64_t g)
{
    return op_slice(tape, x, 1, g * H, H);
}

/* Values and gradients; for LSTM the reference vectors are the same check. */
TEST(gru_equals_its_composition_of_operations)
{
    begin();
    const Outcome expected = whole(3);
    const Layer l = layer_new(3);
    Tensor *h = l.h, *all[N], *wx = op_linear(tape, l.x, l.w[0], l.w[2]);
    for (int64_t t = 0; t < N; t++) {
        Tensor *a = op_reshape(tape, op_slice(tape, wx, 1, t, 1), shape(B, 3 * H));
        Tensor *u = op_linear(tape, h, l.w[1], l.w[3]);
        Tensor *r = op_sigmoid(tape, op_add(tape, gate(a, 0), gate(u, 0)));
        Tensor *z = op_sigmoid(tape, op_add(tape, gate(a, 1), gate(u, 1)));
        Tensor *n = op_tanh(tape, op_add(tape, gate(a, 2), op_multiply(tape, r, gate(u, 2))));
        all[t] = h = op_add(tape, n, op_multiply(tape, z, op_subtract(tape, h, n)));
    }
    assert_alike("operations", outcome_of(&l, op_stack(tape, all, N, 1), &h), expected);
    end();
}

/* Parts of 1 and of 9 positions: without and with packed weights. */
TEST(parts_that_pass_on_the_state_equal_one_run)
{
    begin();
    for (int64_t G = 3; G <= 4; G++) {
        const Outcome expected = whole(G);
        const Layer l = layer_new(G);
        const int64_t starts[] = { 0, 9, 10, N };
        Tensor *state[2] = { l.h, l.c }, *parts[3];
        for (int i = 0; i < 3; i++) {
            Tensor *x = op_slice(tape, l.x, 1, starts[i], starts[i + 1] - starts[i]);
            parts[i] = apply(&l, x, NULL, false, state);
        }
        assert_alike("parts", outcome_of(&l, op_concat(tape, parts, 3, 1), state), expected);
    }
    end();
}

/* x [B, N, columns] with the first lengths[b] positions of each sequence in reverse order */
static Tensor *reversed(Tensor *x, const int32_t *lengths)
{
    const int64_t columns = x->shape.size[2];
    Tensor *rows[B * N];
    Tensor *flat = op_reshape(tape, x, shape(B * N, columns));
    for (int b = 0; b < B; b++)
        for (int t = 0; t < N; t++) {
            const int from = t < lengths[b] ? lengths[b] - 1 - t : t;
            rows[b * N + t] = op_slice(tape, flat, 0, b * N + from, 1);
        }
    return op_reshape(tape, op_concat(tape, rows, B * N, 0), x->shape);
}

TEST(the_reverse_direction_begins_at_each_sequences_last_step)
{
    begin();
    const int32_t lengths[B] = { N, 4, 1 };
    for (int64_t G = 3; G <= 4; G++) {
        Outcome outcomes[2];
        for (int way = 0; way < 2; way++) {
            const Layer l = layer_new(G);
            Tensor *state[2] = { l.h, l.c };
            Tensor *valid = tape_input_i32(tape, lengths, shape(B));
            Tensor *out =
                way == 0
                    ? apply(&l, l.x, valid, true, state)
                    : reversed(apply(&l, reversed(l.x, lengths), valid, false, state), lengths);
            outcomes[way] = outcome_of(&l, out, state);
        }
        assert_alike("reverse", outcomes[0], outcomes[1]);
    }
    end();
}

TEST(positions_after_the_end_have_no_effect)
{
    begin();
    const int32_t lengths[B] = { 5, N, 0 };
    for (int64_t G = 3; G <= 4; G++)
        for (int reverse = 0; reverse < 2; reverse++) {
            Outcome outcomes[2];
            for (int way = 0; way < 2; way++) {
                Layer l = layer_new(G);
                if (way == 1) {
                    Real *values = test_normal(1, B * N * I);
                    for (int b = 0; b < B; b++)
                        for (int i = lengths[b] * I; i < N * I; i++)
                            values[b * N * I + i] = 1000;
                    l.x = tape_variable(tape, values, shape(B, N, I));
                }
                Tensor *state[2] = { l.h, l.c };
                Tensor *out =
                    apply(&l, l.x, tape_input_i32(tape, lengths, shape(B)), reverse, state);
                outcomes[way] = outcome_of(&l, out, state);
            }
            assert_alike("padding", outcomes[0], outcomes[1]);
            const int states = G == 4 ? 2 : 1;
            for (int b = 0; b < B; b++) {
                for (int i = lengths[b] * H; i < N * H; i++)
                    ck_assert(outcomes[0].values[0][b * N * H + i] == 0);
                for (int i = lengths[b] * I; i < N * I; i++)
                    ck_assert(outcomes[0].values[1 + states][b * N * I + i] == 0);
            }
            for (int s = 0; s < states; s++) /* sequence 2 is empty */
                ck_assert(!memcmp(outcomes[0].values[1 + s] + 2 * H,
                                  test_normal(6 + (uint64_t)s, B * H) + 2 * H,
                                  (size_t)H * sizeof(Real)));
        }
    end();
}

TEST(sequences_are_independent)
{
    begin();
    for (int64_t G = 3; G <= 4; G++) {
        const Layer l = layer_new(G);
        Real *values = test_normal(1, B * N * I);
        values[N * I] = (Real)NAN; /* sequence 1 */
        Tensor *state[2] = { l.h, l.c };
        Tensor *x = tape_input(tape, values, shape(B, N, I));
        const Real *out = test_values(apply(&l, x, NULL, false, state));
        for (int i = 0; i < B * N * H; i++)
            ck_assert(isnan(out[i]) == (i / (N * H) == 1));
        tape_reset(tape);
    }
    end();
}

/* --------------------------------------------------------------------------------------- stacks */
TEST(a_stack_has_pytorchs_names)
{
    begin();
    nn_gru(params, "rnn",
           (RecurrentConfig){ .input = 5, .hidden = 3, .layers = 2, .bidirectional = true });
    const struct {
        const char *name;
        Shape shape;
    } expected[] = { { "rnn.weight_ih_l0", shape(9, 5) },
                     { "rnn.weight_hh_l0_reverse", shape(9, 3) },
                     { "rnn.weight_ih_l1_reverse", shape(9, 6) },
                     { "rnn.bias_ih_l1", shape(9) },
                     { "rnn.bias_hh_l1_reverse", shape(9) } };
    ck_assert_int_eq(params_count(params), 16);
    for (int i = 0; i < 5; i++) {
        const Tensor *found = params_find(params, expected[i].name);
        ck_assert_msg(found && shape_equal(found->shape, expected[i].shape), "%s",
                      expected[i].name);
    }
    end();
}

/* PyTorch's bias=False: files have no biases. */
TEST(a_stack_without_bias_is_one_with_biases_of_zero)
{
    begin();
    const RecurrentConfig config = { .input = I, .hidden = H, .layers = 2, .no_bias = true };
    const RecurrentConfig full = { .input = I, .hidden = H, .layers = 2 };
    const Lstm lstm = nn_lstm(params, "a", config), full_lstm = nn_lstm(params, "b", full);
    const Gru gru = nn_gru(params, "c", config), full_gru = nn_gru(params, "d", full);
    ck_assert_int_eq(params_count(params), 4 + 8 + 4 + 8);
    ck_assert(params_find(params, "a.weight_hh_l1") && !params_find(params, "a.bias_hh_l1"));
    for (int i = 0; i < params_count(params); i++) {
        Tensor *to = params_at(params, i);
        char from[32];
        snprintf(from, sizeof from, "%c%s", to->name[0] - 1, to->name + 1);
        if (strstr(to->name, "bias"))
            tensor_write(to, test_zeros(tensor_count(to)));
        else if (to->name[0] == 'b' || to->name[0] == 'd')
            tensor_write(to, test_values(params_find(params, from)));
    }
    Tensor *x = test_variable(tape, 1, shape(B, N, I));
    assert_identical(test_values(nn_lstm_forward(tape, &lstm, x, NULL, NULL)),
                     test_values(nn_lstm_forward(tape, &full_lstm, x, NULL, NULL)), B * N * H);
    assert_identical(test_values(nn_gru_forward(tape, &gru, x, NULL, NULL)),
                     test_values(nn_gru_forward(tape, &full_gru, x, NULL, NULL)), B * N * H);
    end();
}

/* Streaming: one position per call with the state of the call before. */
TEST(a_stack_runs_position_by_position)
{
    begin();
    const RecurrentConfig config = { .input = I, .hidden = H, .layers = 2 };
    const Lstm lstm = nn_lstm(params, "lstm", config);
    const Gru gru = nn_gru(params, "gru", config);
    tape_set_recording(tape, false);
    Tensor *x = test_variable(tape, 1, shape(B, N, I)), *h = NULL, *parts[2][N];
    LstmState state = { NULL, NULL };
    for (int t = 0; t < N; t++) {
        Tensor *x_t = op_slice(tape, x, 1, t, 1);
        parts[0][t] = nn_lstm_forward(tape, &lstm, x_t, NULL, &state);
        parts[1][t] = nn_gru_forward(tape, &gru, x_t, NULL, &h);
    }
    const Tensor *expected[] = { nn_lstm_forward(tape, &lstm, x, NULL, NULL),
                                 nn_gru_forward(tape, &gru, x, NULL, NULL) };
    for (int i = 0; i < 2; i++)
        assert_close(test_values(op_concat(tape, parts[i], N, 1)), test_values(expected[i]),
                     B * N * H, VALUE_TOLERANCE);
    end();
}

TEST(dropout_acts_between_layers_while_the_tape_is_training)
{
    begin();
    const RecurrentConfig config = { .input = I, .hidden = H, .layers = 2, .dropout = 0.5 };
    const Lstm lstm = nn_lstm(params, "", config);
    Tensor *x = test_variable(tape, 1, shape(B, N, I));
    tape_set_training(tape, true);
    const Real *trained = test_values(nn_lstm_forward(tape, &lstm, x, NULL, NULL));
    tape_set_training(tape, false);
    const Real *evaluated = test_values(nn_lstm_forward(tape, &lstm, x, NULL, NULL));
    ck_assert(memcmp(trained, evaluated, (size_t)(B * N * H) * sizeof(Real)) != 0);
    end();
}

TEST(a_tape_in_bf16)
{
    if (!test_has_bf16())
        return;
    begin();
    const Gru gru = nn_gru(params, "", (RecurrentConfig){ .input = I, .hidden = H, .layers = 2 });
    Real *out[2], *gradient[2];
    for (int bf16 = 0; bf16 < 2; bf16++) {
        tape_set_precision(tape, bf16 ? PRECISION_BF16 : PRECISION_FLOAT32);
        Tensor *x = test_variable(tape, 1, shape(B, N, I)), *h = NULL;
        Tensor *y = nn_gru_forward(tape, &gru, bf16 ? op_cast(tape, x, TENSOR_BF16) : x, NULL, &h);
        ck_assert(y->type == (bf16 ? TENSOR_BF16 : TENSOR_REAL) && h->type == TENSOR_REAL);
        y = op_cast(tape, y, TENSOR_REAL);
        out[bf16] = test_values(y);
        tape_backward(tape, op_add(tape, op_sum(tape, y, ALL_AXES), op_sum(tape, h, ALL_AXES)));
        gradient[bf16] = test_values(tensor_gradient(gru.stack.weights[0][0].weight_hh));
        params_zero_gradients(params);
        tape_reset(tape);
    }
    assert_close(out[1], out[0], B * N * H, 0.02);
    assert_close(gradient[1], gradient[0], 3 * H * H, 0.03);
    end();
}

/* --------------------------------------------------------------------------------------- misuse */
TEST(misuse_of_operations_raises)
{
    begin();
    const Layer l = layer_new(4);
    Tensor *const *w = l.w, *flat = op_reshape(tape, l.x, shape(B * N, I));
    const int32_t high[B] = { 1, N + 1, 2 }, low[B] = { -1, 1, 2 };
    const LstmOptions none = { .reverse = false };
    const RecurrentWeights all = weights_from(w);
    assert_raises("op_lstm: x is NULL", op_lstm(tape, NULL, all, none, NULL, NULL));
    assert_raises(
        "op_lstm: weight_hh is NULL",
        op_lstm(tape, l.x, (RecurrentWeights){ w[0], NULL, w[2], w[3] }, none, NULL, NULL));
    assert_raises("op_lstm: x is [33,4], expected [B, N, I]",
                  op_lstm(tape, flat, all, none, NULL, NULL));
    assert_raises(
        "op_lstm: weight_hh is [148,4], expected [4 H, H]",
        op_lstm(tape, l.x, (RecurrentWeights){ w[0], w[0], w[2], w[3] }, none, NULL, NULL));
    assert_raises("op_gru: weight_hh is [148,37], expected [3 H, H]",
                  op_gru(tape, l.x, all, (GruOptions){ .reverse = false }, NULL));
    assert_raises(
        "op_lstm: weight_ih is [148,37], expected [148,4]: x is [3,11,4], weight_hh "
        "[148,37]",
        op_lstm(tape, l.x, (RecurrentWeights){ w[1], w[1], w[2], w[3] }, none, NULL, NULL));
    assert_raises(
        "op_lstm: bias_hh is [148,4], expected [148]: x is [3,11,4], weight_hh [148,37]",
        op_lstm(tape, l.x, (RecurrentWeights){ w[0], w[1], w[2], w[0] }, none, NULL, NULL));
    assert_raises("op_lstm: cell is [148], expected [3,37]: x is [3,11,4], weight_hh [148,37]",
                  op_lstm(tape, l.x, all, (LstmOptions){ .cell = w[2] }, NULL, NULL));
    assert_raises("op_lstm: lengths is [2], expected [3]: one per sequence",
                  op_lstm(tape, l.x, all,
                          (LstmOptions){ .lengths = tape_input_i32(tape, high, shape(2)) }, NULL,
                          NULL));
    assert_raises("op_lstm: lengths[1] is 12, expected 0 to 11, the positions of x",
                  op_lstm(tape, l.x, all,
                          (LstmOptions){ .lengths = tape_input_i32(tape, high, shape(B)) }, NULL,
                          NULL));
    assert_raises("op_lstm: lengths[0] is -1, expected 0 to 11, the positions of x",
                  op_lstm(tape, l.x, all,
                          (LstmOptions){ .lengths = tape_input_i32(tape, low, shape(B)) }, NULL,
                          NULL));
    end();
}

TEST(misuse_of_stacks_raises)
{
    begin();
    assert_raises(
        "shape: a tensor of these 2 sizes would take 2^63 bytes or more",
        nn_lstm(params, "b", (RecurrentConfig){ .input = 1, .hidden = INT64_C(1) << 61 }));
    assert_raises("shape: a tensor of these 2 sizes would take 2^63 bytes or more",
                  nn_gru(params, "b", (RecurrentConfig){ .input = 1, .hidden = INT64_MAX }));
    assert_raises("nn_lstm_forward: the layer is NULL",
                  nn_lstm_forward(tape, NULL, NULL, NULL, NULL));
    assert_raises("nn_gru_forward: the layer is NULL",
                  nn_gru_forward(tape, NULL, NULL, NULL, NULL));
    assert_raises("nn_lstm: a: input is 0 and hidden 3, expected 1 or more",
                  nn_lstm(params, "a", (RecurrentConfig){ .hidden = 3 }));
    assert_raises("nn_gru: a: layers is 65, expected 1 to 64",
                  nn_gru(params, "a", (RecurrentConfig){ .input = 1, .hidden = 3, .layers = 65 }));
    assert_raises("nn_dropout: the probability is 1, expected 0 <= probability < 1",
                  nn_gru(params, "a",
                         (RecurrentConfig){ .input = 1, .hidden = 3, .layers = 2, .dropout = 1 }));
    assert_raises(
        "nn_gru: a: dropout is 0.5, expected 0 for one layer: it is between layers",
        nn_gru(params, "a", (RecurrentConfig){ .input = 1, .hidden = 3, .dropout = 0.5 }));
    const Lstm empty = { .stack = { .layers = 0 } };
    Tensor *x = test_variable(tape, 1, shape(B, N, I)),
           *flat = op_reshape(tape, x, shape(B * N, I));
    assert_raises("nn_lstm_forward: there are no layers; see nn_lstm",
                  nn_lstm_forward(tape, &empty, x, NULL, NULL));
    const Lstm lstm = nn_lstm(params, "b", (RecurrentConfig){ .input = I, .hidden = H });
    LstmState state = { .hidden = test_variable(tape, 2, shape(2, B, H)) };
    assert_raises("nn_lstm_forward: x is [33,4], expected [B, N, input]",
                  nn_lstm_forward(tape, &lstm, flat, NULL, NULL));
    assert_raises("nn_lstm_forward: state is [2,3,37], expected [1,3,37]: layers times "
                  "directions, batch, hidden",
                  nn_lstm_forward(tape, &lstm, x, NULL, &state));
    end();
}

int main(void)
{
    return test_main("recurrent", NULL, NULL);
}
