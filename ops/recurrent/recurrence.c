/* The part of op_lstm and op_gru that does not depend on the cell. With a_t = W_ih x_t + b_ih of
 * all positions and u_t = W_hh h_t-1 + b_hh, a cell computes h_t from a_t, u_t and its state. Its
 * backward pass over time yields da and du (equal for LSTM) of all positions; the rest is products
 * over all positions at once:
 *   dx_t <- W_ih^T da_t    dW_ih <- sum_t da_t x_t^T      db_ih <- sum_t da_t
 *                          dW_hh <- sum_t du_t h_t-1^T    db_hh <- sum_t du_t
 * x W_ih^T, the gates, da and du share one buffer, [B, N, G H], one after another. */
#include "ops/kernels.h"
#include "ops/shared/indices.h"
#include "ops/products/product.h"
#include "ops/shared/columns.h"

typedef struct RecurrentAttributes {
    const RecurrentKind *kind;
    bool reverse;
} RecurrentAttributes;

enum {
    INPUT_X,
    INPUT_WEIGHT_IH,
    INPUT_WEIGHT_HH,
    INPUT_BIAS_IH,
    INPUT_BIAS_HH,
    INPUT_LENGTHS,
    INPUT_HIDDEN,
    INPUT_CELL
};
enum { SAVED_GATES, SAVED_CELLS };

void previous_hidden_plain(Real *previous, const Real *initial, Recurrence r)
{
    EACH_ROW(b, r.B, r.N * r.H) {
        for (int64_t step = 0; step < length_of(&r, b); step++) {
            const int64_t row = b * r.N + position_of(&r, b, step);
            for (int64_t j = 0; j < r.H; j++)
                previous[row * r.H + j] = step > 0  ? r.out[(row + (r.reverse ? 1 : -1)) * r.H + j]
                                          : initial ? initial[b * r.H + j]
                                                    : 0;
        }
        zero_after_end(&r, b, previous, r.H);
    }
}

Real hidden_product(const Recurrence *r, int64_t k, const Real *h)
{
    const Real *w = r->weight + k * r->H;
    double sum = 0;
    SUM(+, sum)
    for (int64_t j = 0; j < r->H; j++)
        sum += w[j] * h[j];
    return r->bias_hh[k] + (Real)sum;
}

/* Row by row of W_hh, which is contiguous in memory, so the sums over k are Real. */
void add_hidden_gradient(const Recurrence *r, Real *dh, int64_t first, int64_t count,
                         const Real *du)
{
    for (int64_t k = 0; k < count; k++) {
        const Real *w = r->weight + (first + k) * r->H;
        PRAGMA(omp simd)
        for (int64_t j = 0; j < r->H; j++)
            dh[j] += w[j] * du[k];
    }
}

void zero_after_end(const Recurrence *r, int64_t b, Real *x, int64_t columns)
{
    for (int64_t i = length_of(r, b) * columns; i < r->N * columns; i++)
        x[b * r->N * columns + i] = 0;
}

static void copy_or_zero(Tensor *to, const Real *from)
{
    if (from)
        device_copy(to->device, to->data, from, tensor_bytes(to));
    else
        device_zero(to->device, to->data, tensor_bytes(to));
}

static const Real *data_or_null(const Tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

/* ------------------------------------------------------------------------------------- backward */

static void contribute_product(Node *node, Tensor *input, Operand a, Operand b, Product size)
{
    Gradient gradient = tape_contribution(node, input);
    if (gradient.data)
        product(node->tape, node->name, result_for(gradient, input), a, b, size);
}

/* dbias <- the sums over all positions of dgates */
static void contribute_bias(Node *node, Tensor *bias, const Real *sums)
{
    Gradient gradient = tape_contribution(node, bias);
    if (gradient.data)
        add_parts(bias->device, gradient, sums, 1, tensor_count(bias));
}

static void contribute_state(Node *node, Tensor *initial, const Tensor *gradient)
{
    Gradient d = tape_contribution(node, initial);
    if (d.data)
        add_parts(initial->device, d, gradient->data, 1, tensor_count(initial));
}

/* dW_ih, db_ih, dx, dW_hh, db_hh from the gates' gradients; previous: h of the step before. */
static void contribute_all_positions(Node *node, const RecurrentKind *kind, Recurrence r,
                                     const Tensor *previous)
{
    Tensor **in = node->inputs, *x = in[INPUT_X], *gates = node->saved[SAVED_GATES];
    const int64_t R = r.B * r.N, C = r.G * r.H, I = shape_columns(x->shape);
    const Operand dgates = operand_of(gates);
    Tensor *sums = tape_scratch(node->tape, shape(C));
    const Gradient all = { sums->data, false };
    contribute_product(node, x, dgates, operand_of(in[INPUT_WEIGHT_IH]),
                       (Product){ .n = R, .k = C, .m = I, .count = 1 });
    contribute_product(node, in[INPUT_WEIGHT_IH], dgates, operand_of(x),
                       (Product){ .n = C, .k = R, .m = I, .transpose_a = true, .count = 1 });
    column_sums(node->tape, gates, all, gates->data, R, C);
    contribute_bias(node, in[INPUT_BIAS_IH], sums->data);
    if (kind->hidden_gates) {
        kind->hidden_gates(gates->device, r);
        column_sums(node->tape, gates, all, gates->data, R, C);
    }
    contribute_bias(node, in[INPUT_BIAS_HH], sums->data);
    contribute_product(node, in[INPUT_WEIGHT_HH], dgates, operand_of(previous),
                       (Product){ .n = C, .k = R, .m = r.H, .transpose_a = true, .count = 1 });
    tape_scratch_free(node->tape, sums);
}

static Recurrence recurrence_of(const RecurrentKind *kind, Tape *tape, Tensor *const *in,
                                bool reverse, const Tensor *gates, const Tensor *saved,
                                const Tensor *out)
{
    return (Recurrence){
        .B = out->shape.size[0],
        .N = out->shape.size[1],
        .G = kind->G,
        .H = out->shape.size[2],
        .reverse = reverse,
        .lengths = in[INPUT_LENGTHS] ? in[INPUT_LENGTHS]->integers : NULL,
        .weight = in[INPUT_WEIGHT_HH]->data,
        .bias_ih = in[INPUT_BIAS_IH]->data,
        .bias_hh = in[INPUT_BIAS_HH]->data,
        .gates = gates->data,
        .saved = saved->data,
        .out = out->data,
        .operation = kind->labels.operation,
        .precision = tape_precision(tape),
    };
}

static void recurrent_backward(Node *node)
{
    const RecurrentAttributes *attributes = node->attributes;
    Tape *tape = node->tape;
    Tensor **in = node->inputs;
    Recurrence r =
        recurrence_of(attributes->kind, tape, in, attributes->reverse, node->saved[SAVED_GATES],
                      node->saved[SAVED_CELLS], node->outputs[0]);
    Tensor *dhidden = tape_scratch(tape, shape(r.B, r.H)), *dcell = NULL;
    copy_or_zero(dhidden, tape_upstream(node, 1));
    if (attributes->kind->has_cell) {
        dcell = tape_scratch(tape, shape(r.B, r.H));
        copy_or_zero(dcell, tape_upstream(node, 2));
        r.dcell = dcell->data;
    }
    Tensor *previous = tape_scratch(tape, node->outputs[0]->shape);
    kernels_on(previous->device, TENSOR_REAL)
        ->previous_hidden(previous->data, data_or_null(in[INPUT_HIDDEN]), r);
    r.dout = tape_upstream(node, 0);
    r.dhidden = dhidden->data;
    r.previous = previous->data;
    r.initial_cell = data_or_null(in[INPUT_CELL]);
    attributes->kind->backward(previous->device, r);
    contribute_all_positions(node, attributes->kind, r, previous);
    contribute_state(node, in[INPUT_HIDDEN], dhidden);
    contribute_state(node, in[INPUT_CELL], dcell);
    tape_scratch_free(tape, previous);
    tape_scratch_free(tape, dcell);
    tape_scratch_free(tape, dhidden);
}

/* -------------------------------------------------------------------------------------- forward */

static void check_shape(Tape *tape, const char *label, Tensor *tensor, Shape expected,
                        const RecurrentInputs *inputs)
{
    tape_use_real(tape, label, tensor);
    if (!shape_equal(tensor->shape, expected))
        tape_error(tape, "%s %s, expected %s: x is %s, weight_hh %s", label,
                   tensor_text(tensor).text, shape_text(expected).text,
                   shape_text(inputs->x->shape).text, shape_text(inputs->weight_hh->shape).text);
}

static void check_recurrent_inputs(Tape *tape, const RecurrentKind *kind, const RecurrentInputs *in)
{
    const RecurrentLabels *labels = &kind->labels;
    tape_use(tape, labels->x, in->x);
    tape_use_real(tape, labels->weight_hh, in->weight_hh);
    if (in->x->shape.rank != 3)
        tape_error(tape, "%s is %s, expected [B, N, I]", labels->x, shape_text(in->x->shape).text);
    const Shape of = in->weight_hh->shape;
    if (of.rank != 2 || of.size[0] != kind->G * of.size[1])
        tape_error(tape, "%s %s, expected [%lld H, H]", labels->weight_hh,
                   tensor_text(in->weight_hh).text, (long long)kind->G);
    const int64_t B = in->x->shape.size[0], H = of.size[1];
    check_shape(tape, labels->weight_ih, in->weight_ih, shape(kind->G * H, in->x->shape.size[2]),
                in);
    check_shape(tape, labels->bias_ih, in->bias_ih, shape(kind->G * H), in);
    check_shape(tape, labels->bias_hh, in->bias_hh, shape(kind->G * H), in);
    if (in->hidden)
        check_shape(tape, labels->hidden, in->hidden, shape(B, H), in);
    if (in->cell)
        check_shape(tape, labels->cell, in->cell, shape(B, H), in);
    if (!in->lengths)
        return;
    tape_use_i32(tape, labels->lengths, in->lengths);
    if (!shape_equal(in->lengths->shape, shape(B)))
        tape_error(tape, "%s is %s, expected [%lld]: one per sequence", labels->lengths,
                   shape_text(in->lengths->shape).text, (long long)B);
    check_indices(tape, labels->lengths, in->lengths, 0, in->x->shape.size[1],
                  "the positions of x");
}

static Tensor *state_from(Tape *tape, const Tensor *initial, Shape of)
{
    Tensor *state = tape_tensor(tape, of);
    copy_or_zero(state, data_or_null(initial));
    return state;
}

Tensor *recurrent(Tape *tape, const RecurrentKind *kind, RecurrentInputs inputs,
                  Tensor **final_hidden, Tensor **final_cell)
{
    check_recurrent_inputs(tape, kind, &inputs);
    const TensorType type = inputs.x->type;
    Tensor *x = op_cast(tape, inputs.x, TENSOR_REAL);
    const int64_t B = x->shape.size[0], N = x->shape.size[1], I = x->shape.size[2];
    const int64_t H = inputs.weight_hh->shape.size[1];
    Tensor *gates = tape_tensor(tape, shape(B, N, kind->G * H));
    Tensor *saved = tape_tensor(tape, shape(B, N, H)), *out = tape_tensor(tape, shape(B, N, H));
    Tensor *hidden = state_from(tape, inputs.hidden, shape(B, H));
    Tensor *cell = kind->has_cell ? state_from(tape, inputs.cell, shape(B, H)) : NULL;
    const RecurrentAttributes attributes = { kind, inputs.reverse };
    const Node node = { kind->labels.operation,
                        recurrent_backward,
                        .inputs = { x, inputs.weight_ih, inputs.weight_hh, inputs.bias_ih,
                                    inputs.bias_hh, inputs.lengths, inputs.hidden, inputs.cell },
                        .outputs = { out, hidden, cell },
                        .saved = { gates, saved },
                        .attributes = tape_save(tape, &attributes, sizeof attributes) };
    product(tape, kind->labels.operation, result_in(gates), operand_of(x),
            operand_of(inputs.weight_ih),
            (Product){ .n = B * N, .k = I, .m = kind->G * H, .transpose_b = true, .count = 1 });
    Recurrence r = recurrence_of(kind, tape, node.inputs, inputs.reverse, gates, saved, out);
    r.hidden = hidden->data;
    r.cell = cell ? cell->data : NULL;
    kind->forward(out->device, r);
    if (!tape_is_recording(tape)) {
        tape_scratch_free(tape, saved);
        tape_scratch_free(tape, gates);
    }
    tape_record(tape, node);
    if (final_hidden)
        *final_hidden = hidden;
    if (final_cell)
        *final_cell = cell;
    return op_cast(tape, out, type);
}
