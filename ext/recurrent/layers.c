/* Recurrent layers, stacked and in both directions. */
#include "ext/recurrent/recurrent.h"
#include "extend.h"

#include <math.h>
#include <stdio.h>

/* A layer of a kind in one direction: op_lstm. state and final: hidden, cell. */
typedef Tensor *RecurrentLayer(Tape *tape, Tensor *x, const RecurrentWeights *weights,
                               Tensor *lengths, bool reverse, Tensor *const *state, Tensor **final);

/* What stacks of LSTM and of GRU layers differ in. */
typedef struct Kind {
    const char *constructor, *forward, *x, *state;
    int64_t gates;
    int states; /* tensors of the state */
    RecurrentLayer *layer;
} Kind;

static Tensor *weight(Params *params, const char *name, const char *what, int64_t layer,
                      int64_t direction, Shape of, int64_t hidden)
{
    char path[48];
    snprintf(path, sizeof path, "%s_l%lld%s", what, (long long)layer, direction ? "_reverse" : "");
    const Initializer uniform = { INITIAL_UNIFORM, 1 / sqrt((double)hidden) };
    return params_add(params, nn_name(name, path).text, of, uniform);
}

static Recurrent stack_new(const Kind *kind, Params *params, const char *name, RecurrentConfig c)
{
    if (c.input < 1 || c.hidden < 1)
        error_raise("%s: %s: input is %lld and hidden %lld, expected 1 or more", kind->constructor,
                    name, (long long)c.input, (long long)c.hidden);
    if (c.layers < 0 || c.layers > NN_MAX_LAYERS)
        error_raise("%s: %s: layers is %lld, expected 1 to %d", kind->constructor, name,
                    (long long)c.layers, NN_MAX_LAYERS);
    if (c.dropout > 0 && c.layers < 2)
        error_raise("%s: %s: dropout is %g, expected 0 for one layer: it is between layers",
                    kind->constructor, name, c.dropout);
    const int64_t H = c.hidden, rows = shape_count(shape(kind->gates, H));
    Recurrent stack = { .layers = c.layers ? c.layers : 1,
                        .directions = c.bidirectional ? 2 : 1,
                        .hidden = H,
                        .dropout = nn_dropout(c.dropout) };
    for (int64_t l = 0; l < stack.layers; l++)
        for (int64_t d = 0; d < stack.directions; d++) {
            const int64_t in = l == 0 ? c.input : stack.directions * H;
            stack.weights[l][d] = (RecurrentWeights){
                .weight_ih = weight(params, name, "weight_ih", l, d, shape(rows, in), H),
                .weight_hh = weight(params, name, "weight_hh", l, d, shape(rows, H), H),
            };
            if (c.no_bias)
                continue;
            stack.weights[l][d].bias_ih = weight(params, name, "bias_ih", l, d, shape(rows), H);
            stack.weights[l][d].bias_hh = weight(params, name, "bias_hh", l, d, shape(rows), H);
        }
    return stack;
}

/* Part `index` of a state [count, B, H], or NULL */
static Tensor *state_at(Tape *tape, Tensor *state, int64_t index)
{
    if (!state)
        return NULL;
    const Shape one = shape(state->shape.size[1], state->shape.size[2]);
    return op_reshape(tape, op_slice(tape, state, 0, index, 1), one);
}

static void check_recurrent_state(Tape *tape, const Kind *kind, const Recurrent *stack, Tensor *x,
                                  Tensor *state)
{
    tape_use_real(tape, kind->state, state);
    const Shape expected =
        shape(stack->layers * stack->directions, x->shape.size[0], stack->hidden);
    if (!shape_equal(state->shape, expected))
        tape_error(tape, "%s is %s, expected %s: layers times directions, batch, hidden",
                   kind->state, shape_text(state->shape).text, shape_text(expected).text);
}

/* state [kind->states]: the initial state, which becomes the final one; NULL: zeros, dropped */
static Tensor *stack_forward(Tape *tape, const Kind *kind, const Recurrent *stack, Tensor *x,
                             Tensor *lengths, Tensor **state)
{
    enum { MAX_STATES = 2 };
    Tensor *finals[MAX_STATES][2 * NN_MAX_LAYERS], *out[2];
    if (stack->layers < 1)
        tape_error(tape, "%s: there are no layers; see %s", kind->forward, kind->constructor);
    tape_use(tape, kind->x, x);
    if (x->shape.rank != 3)
        tape_error(tape, "%s is %s, expected [B, N, input]", kind->x, shape_text(x->shape).text);
    for (int s = 0; state && s < kind->states; s++)
        if (state[s])
            check_recurrent_state(tape, kind, stack, x, state[s]);
    const int64_t count = stack->layers * stack->directions;
    for (int64_t l = 0; l < stack->layers; l++) {
        if (l > 0)
            x = nn_dropout_forward(tape, &stack->dropout, x);
        for (int64_t d = 0; d < stack->directions; d++) {
            const int64_t index = l * stack->directions + d;
            Tensor *initial[MAX_STATES] = { NULL }, *final[MAX_STATES];
            for (int s = 0; state && s < kind->states; s++)
                initial[s] = state_at(tape, state[s], index);
            out[d] = kind->layer(tape, x, &stack->weights[l][d], lengths, d == 1, initial, final);
            for (int s = 0; s < kind->states; s++)
                finals[s][index] = final[s];
        }
        x = stack->directions == 1 ? out[0] : op_concat(tape, out, 2, -1);
    }
    for (int s = 0; state && s < kind->states; s++)
        state[s] = op_stack(tape, finals[s], (int)count, 0);
    return x;
}

static Tensor *lstm_layer(Tape *tape, Tensor *x, const RecurrentWeights *w, Tensor *lengths,
                          bool reverse, Tensor *const *state, Tensor **final)
{
    const LstmOptions options = {
        .lengths = lengths, .hidden = state[0], .cell = state[1], .reverse = reverse
    };
    return op_lstm(tape, x, *w, options, &final[0], &final[1]);
}

static const Kind lstm_kind = {
    "nn_lstm", "nn_lstm_forward", "nn_lstm_forward: x", "nn_lstm_forward: state", 4, 2, lstm_layer
};

Lstm nn_lstm(Params *params, const char *name, RecurrentConfig config)
{
    return (Lstm){ stack_new(&lstm_kind, params, name, config) };
}

Tensor *nn_lstm_forward(Tape *tape, const Lstm *lstm, Tensor *x, Tensor *lengths, LstmState *state)
{
    error_need("nn_lstm_forward", "the layer", lstm);
    if (!state)
        return stack_forward(tape, &lstm_kind, &lstm->stack, x, lengths, NULL);
    Tensor *tensors[] = { state->hidden, state->cell };
    Tensor *out = stack_forward(tape, &lstm_kind, &lstm->stack, x, lengths, tensors);
    *state = (LstmState){ tensors[0], tensors[1] };
    return out;
}

static Tensor *gru_layer(Tape *tape, Tensor *x, const RecurrentWeights *w, Tensor *lengths,
                         bool reverse, Tensor *const *state, Tensor **final)
{
    const GruOptions options = { .lengths = lengths, .hidden = state[0], .reverse = reverse };
    return op_gru(tape, x, *w, options, final);
}

static const Kind gru_kind = {
    "nn_gru", "nn_gru_forward", "nn_gru_forward: x", "nn_gru_forward: hidden", 3, 1, gru_layer
};

Gru nn_gru(Params *params, const char *name, RecurrentConfig config)
{
    return (Gru){ stack_new(&gru_kind, params, name, config) };
}

Tensor *nn_gru_forward(Tape *tape, const Gru *gru, Tensor *x, Tensor *lengths, Tensor **hidden)
{
    error_need("nn_gru_forward", "the layer", gru);
    return stack_forward(tape, &gru_kind, &gru->stack, x, lengths, hidden);
}
