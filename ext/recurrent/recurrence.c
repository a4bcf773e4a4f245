/* The part of op_lstm and op_gru that does not depend on the cell. With a_t = W_ih x_t + b_ih of
 * all positions and u_t = W_hh h_{t-1} + b_hh, a cell computes h_t from a_t, u_t and its state. Its
 * backward pass over time yields da and du (equal for LSTM) of all positions; the rest is products
 * over all positions at once:
 *   dx_t <- W_ih^T da_t    dW_ih <- sum_t da_t x_t^T      db_ih <- sum_t da_t
 *                          dW_hh <- sum_t du_t h_{t-1}^T    db_hh <- sum_t du_t
 * x W_ih^T, the gates, da and du share one buffer, [B, N, G H], one after another. */
#include "ext/recurrent/kernels.h"

typedef struct RecurrentAttributes {
    const RecurrentKind *kind;
    RecurrentInputs in;
    Recurrence r; /* of the forward pass */
} RecurrentAttributes;

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

static const Real *data_or_null(const Tensor *tensor)
{
    return tensor ? tensor->data : NULL;
}

/* to = from, or 0 if from is NULL */
static Tensor *copy_or_zero(Tensor *to, const Real *from)
{
    if (from)
        device_copy(to->device, to->data, from, tensor_bytes(to));
    else
        device_zero(to->device, to->data, tensor_bytes(to));
    return to;
}

static const CellKernels *kernels_of_cell(const RecurrentKind *kind, const Tensor *out)
{
    return KERNELS_FOR(kind->kernels, out->device, TENSOR_REAL);
}

/* ------------------------------------------------------------------------------------- backward */

/* The gradient of input, or NULL, <- values */
static void contribute_values(Node *node, Tensor *input, const Tensor *values)
{
    const Gradient gradient = tape_contribution(node, input);
    if (gradient.data)
        kernels_of(input)->column_sums(gradient, values->data, 1, tensor_count(input));
}

/* dx, dW_ih, db_ih, db_hh, dW_hh from da, the gates' gradients; previous: all h_{t-1} */
static void contribute_all_positions(Node *node, const Recurrence *r, const Tensor *previous)
{
    const RecurrentAttributes *attributes = node->attributes;
    const RecurrentInputs *in = &attributes->in;
    const Tensor *gates = node->saved[0];
    const Kernels *kernels = kernels_of(gates);
    const CellKernels *cell = kernels_of_cell(attributes->kind, gates);
    const Operand da = operand_of(gates); /* du after hidden_gates, in the same memory */
    const int64_t R = r->B * r->N, C = r->G * r->H, I = shape_columns(in->x->shape);
    Tensor *sums = tape_tensor(node->tape, shape(C));
    const Gradient all = { sums->data, false };
    op_contribute_product(node, in->x, da, operand_of(in->weights.weight_ih),
                          (Product){ .n = R, .k = C, .m = I, .count = 1 });
    op_contribute_product(node, in->weights.weight_ih, da, operand_of(in->x),
                          (Product){ .n = C, .k = R, .m = I, .transpose_a = true, .count = 1 });
    kernels->column_sums(all, gates->data, R, C);
    contribute_values(node, in->weights.bias_ih, sums);
    if (cell->hidden_gates) {
        cell->hidden_gates(*r);
        kernels->column_sums(all, gates->data, R, C);
    }
    contribute_values(node, in->weights.bias_hh, sums);
    op_contribute_product(node, in->weights.weight_hh, da, operand_of(previous),
                          (Product){ .n = C, .k = R, .m = r->H, .transpose_a = true, .count = 1 });
    tape_scratch_free(node->tape, sums);
}

static void recurrent_backward(Node *node)
{
    const RecurrentAttributes *attributes = node->attributes;
    const RecurrentInputs *in = &attributes->in;
    const bool has_cell = attributes->kind->has_cell;
    const Tensor *out = node->outputs[0];
    const CellKernels *kernels = kernels_of_cell(attributes->kind, out);
    Tape *tape = node->tape;
    Recurrence r = attributes->r;
    Tensor *previous = tape_tensor(tape, out->shape);
    Tensor *dhidden = copy_or_zero(tape_tensor(tape, shape(r.B, r.H)), tape_upstream(node, 1));
    Tensor *dcell = NULL;
    if (has_cell)
        dcell = copy_or_zero(tape_tensor(tape, shape(r.B, r.H)), tape_upstream(node, 2));
    kernels->previous_hidden(previous->data, data_or_null(in->hidden), r);
    r.dout = tape_upstream(node, 0);
    r.dhidden = dhidden->data;
    r.dcell = has_cell ? dcell->data : NULL;
    r.previous = previous->data;
    r.initial_cell = data_or_null(in->cell);
    kernels->backward(r);
    contribute_all_positions(node, &r, previous);
    contribute_values(node, in->hidden, dhidden);
    contribute_values(node, in->cell, dcell);
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
                   shape_text(inputs->x->shape).text,
                   shape_text(inputs->weights.weight_hh->shape).text);
}

static void check(Tape *tape, const RecurrentKind *kind, const RecurrentInputs *in)
{
    const RecurrentLabels *labels = &kind->labels;
    tape_use(tape, labels->x, in->x);
    tape_use_real(tape, labels->weight_hh, in->weights.weight_hh);
    if (in->x->shape.rank != 3)
        tape_error(tape, "%s is %s, expected [B, N, I]", labels->x, shape_text(in->x->shape).text);
    const Shape of = in->weights.weight_hh->shape;
    if (of.rank != 2 || of.size[0] != kind->G * of.size[1])
        tape_error(tape, "%s %s, expected [%lld H, H]", labels->weight_hh,
                   tensor_text(in->weights.weight_hh).text, (long long)kind->G);
    const int64_t B = in->x->shape.size[0], H = of.size[1];
    check_shape(tape, labels->weight_ih, in->weights.weight_ih,
                shape(kind->G * H, in->x->shape.size[2]), in);
    if (in->weights.bias_ih)
        check_shape(tape, labels->bias_ih, in->weights.bias_ih, shape(kind->G * H), in);
    if (in->weights.bias_hh)
        check_shape(tape, labels->bias_hh, in->weights.bias_hh, shape(kind->G * H), in);
    if (in->hidden)
        check_shape(tape, labels->hidden, in->hidden, shape(B, H), in);
    if (in->cell)
        check_shape(tape, labels->cell, in->cell, shape(B, H), in);
    if (in->lengths)
        op_check_sequence_lengths(tape, labels->lengths, in->lengths, B, 0, in->x->shape.size[1],
                                  "the positions of x");
}

/* For kernels; the backward pass does not read it. */
static const Real *bias_or_zeros(Tape *tape, const Tensor *bias, int64_t count)
{
    return bias ? bias->data : copy_or_zero(tape_tensor(tape, shape(count)), NULL)->data;
}

Tensor *recurrent(Tape *tape, const RecurrentKind *kind, RecurrentInputs in, Tensor **final_hidden,
                  Tensor **final_cell)
{
    check(tape, kind, &in);
    const TensorType type = in.x->type;
    in.x = op_cast(tape, in.x, TENSOR_REAL);
    const int64_t B = in.x->shape.size[0], N = in.x->shape.size[1], I = in.x->shape.size[2];
    const int64_t H = in.weights.weight_hh->shape.size[1], C = kind->G * H;
    Tensor *gates = tape_tensor(tape, shape(B, N, C)), *saved = tape_tensor(tape, shape(B, N, H));
    Tensor *out = tape_tensor(tape, shape(B, N, H)), *cell = NULL;
    Tensor *hidden = copy_or_zero(tape_tensor(tape, shape(B, H)), data_or_null(in.hidden));
    if (kind->has_cell)
        cell = copy_or_zero(tape_tensor(tape, shape(B, H)), data_or_null(in.cell));
    const Recurrence r = { .B = B,
                           .N = N,
                           .G = kind->G,
                           .H = H,
                           .reverse = in.reverse,
                           .lengths = in.lengths ? in.lengths->integers : NULL,
                           .weight = in.weights.weight_hh->data,
                           .bias_ih = bias_or_zeros(tape, in.weights.bias_ih, C),
                           .bias_hh = bias_or_zeros(tape, in.weights.bias_hh, C),
                           .gates = gates->data,
                           .saved = saved->data,
                           .out = out->data,
                           .hidden = hidden->data,
                           .cell = cell ? cell->data : NULL,
                           .precision = tape_precision(tape) };
    const RecurrentAttributes attributes = { kind, in, r };
    op_product(tape, result_in(gates), operand_of(in.x), operand_of(in.weights.weight_ih),
               (Product){ .n = B * N, .k = I, .m = C, .transpose_b = true, .count = 1 });
    kernels_of_cell(kind, out)->forward(r);
    tape_record(tape, (Node){ kind->labels.operation, recurrent_backward,
                              .inputs = { in.x, in.weights.weight_ih, in.weights.weight_hh,
                                          in.weights.bias_ih, in.weights.bias_hh, in.lengths,
                                          in.hidden, in.cell },
                              .outputs = { out, hidden, cell }, .saved = { gates, saved },
                              .attributes = tape_save(tape, &attributes, sizeof attributes) });
    if (final_hidden)
        *final_hidden = hidden;
    if (final_cell)
        *final_cell = cell;
    return op_cast(tape, out, type);
}
