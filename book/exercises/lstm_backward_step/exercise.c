/* Exercise 11.1: the right gradients are those of op_lstm; the usual mistakes are a step in which
 * one expression is another one. */
#include "exercise.h"
#include "../grade.h"

#include <math.h>
#include <string.h>

enum { GATES, C, C_BEFORE, DH, DC_AFTER, A };

/* L = sum of dh_j h_j + sum of dc_after_j c_j */
static Tensor *loss_of(Tape *tape, Case *c, Tensor *h, Tensor *cell)
{
    Tensor *dh = tape_input(tape, c->in[DH], h->shape);
    Tensor *dc = tape_input(tape, c->in[DC_AFTER], h->shape);
    return op_add(tape, op_sum(tape, op_multiply(tape, h, dh), ALL_AXES),
                  op_sum(tape, op_multiply(tape, cell, dc), ALL_AXES));
}

/* One step of the library from x = 0 and h_0 = 0: the biases A are the gates before their
 * functions, so that their gradient is da. */
static void make(Case *c, int index)
{
    static const int sizes[CASES] = { 3, 1, 5 };
    static const Real zeros[ELEMENTS];
    const int H = c->size[0] = sizes[index];
    case_normal(c, index, A, 4 * H);
    case_normal(c, index, C_BEFORE, H);
    case_normal(c, index, DH, H);
    case_normal(c, index, DC_AFTER, H);
    for (int k = 0; k < 4 * H; k++) {
        const Real a = c->in[A][k];
        c->in[GATES][k] = k / H == 2 ? tanh(a) : 1 / (1 + exp(-a));
    }
    Tape *tape = tape_new(device_open("plain"));
    Tensor *x = tape_input(tape, zeros, shape(1, 1, 1)), *last_h, *last_c;
    Tensor *a = tape_variable(tape, c->in[A], shape(4 * H));
    Tensor *c_before = tape_variable(tape, c->in[C_BEFORE], shape(1, H));
    const RecurrentWeights weights = { tape_input(tape, zeros, shape(4 * H, 1)),
                                       tape_input(tape, zeros, shape(4 * H, H)), a,
                                       tape_input(tape, zeros, shape(4 * H)) };
    op_lstm(tape, x, weights, (LstmOptions){ .cell = c_before }, &last_h, &last_c);
    tensor_read(last_c, c->in[C]);
    tape_backward(tape, loss_of(tape, c, last_h, last_c));
    case_right(c, 0, tensor_gradient(a)->data, 4, H);
    case_right(c, 1, tensor_gradient(c_before)->data, 1, H);
    tape_free(tape);
}

static void student(const Case *c, const Gradient *out)
{
    const int H = c->size[0];
    const Real *gates = c->in[GATES];
    lstm_backward_step(out[0].data, out[1].data,
                       (Step){ gates, gates + H, gates + 2 * H, gates + 3 * H, c->in[C],
                               c->in[C_BEFORE], c->in[DH], c->in[DC_AFTER] },
                       H);
}

#define FAULTS(FAULT)                                                                              \
    FAULT(dropped, "dc has two sources, and what c_{t+1} contributes is missing: add dc_after")    \
    FAULT(output_dropped, "dc has two sources, and what h_t contributes is missing: "              \
                          "dh o (1 - tanh(c)^2), since h_t = o tanh(c_t) reads c_t")               \
    FAULT(no_derivative, "in dc, the derivative of tanh is missing: h_t = o tanh(c_t), so dh has " \
                         "the factors o and 1 - tanh(c)^2")                                        \
    FAULT(not_squared, "in dc, the derivative of tanh(c) is 1 - tanh(c)^2: the square is missing") \
    FAULT(bare_cell, "in dc, the derivative of tanh(c) is 1 - tanh(c)^2, here it is 1 - c^2: c "   \
                     "is the argument of tanh, not its result")                                    \
    FAULT(no_output_gate, "in dc, the factor o of dh is missing: h_t = o tanh(c_t)")               \
    FAULT(o_bare, "the gradient of o has the factor c_t, expected tanh(c_t): h_t = o tanh(c_t)")   \
    FAULT(o_by_dc, "the gradient of o has the factor dc, expected dh: o acts on h_t alone")        \
    FAULT(by_dh, "the gradients of i, f and c~ have the factor dh, expected dc: these gates act "  \
                 "on c_t")                                                                         \
    FAULT(no_functions, "da is the gradient before the gates' functions: multiply by their "       \
                        "derivatives, s (1 - s) of a sigmoid s, 1 - c~^2 of c~")                   \
    FAULT(only_s, "the derivative of a sigmoid s is s (1 - s): the factor 1 - s is missing")       \
    FAULT(only_rest, "the derivative of a sigmoid s is s (1 - s): the factor s is missing")        \
    FAULT(candidate_linear, "the derivative of c~ is 1 - c~^2: the square is missing")             \
    FAULT(candidate_sigmoid, "c~ is a tanh, whose derivative is 1 - c~^2, not c~ (1 - c~)")        \
    FAULT(factors_exchanged, "the factors of i and f are exchanged: c_t = f c_{t-1} + i c~, so "   \
                             "di has the factor c~, and df c_{t-1}")                               \
    FAULT(late_cell, "the gradient of f has the factor c_t, expected c_{t-1}: f multiplies the "   \
                     "cell of the step before")                                                    \
    FAULT(candidate_by_f, "the gradient of c~ has the factor f, expected i: c_t = f c_{t-1} + "    \
                          "i c~")                                                                  \
    FAULT(candidate_alone, "the gradient of c~ lacks the factor i: c_t = f c_{t-1} + i c~")        \
    FAULT(f_i_order, "the first two rows of da are exchanged: the order is i, f, c~, o")           \
    FAULT(o_c_order, "the last two rows of da are exchanged: the order is i, f, c~, o")            \
    FAULT(before_by_i, "dc_before has the factor i, expected f: c_t = f c_{t-1} + i c~")           \
    FAULT(before_without_f, "dc_before lacks the factor f: c_t = f c_{t-1} + i c~")                \
    FAULT(before_dropped, "dc_before is dc_after f: it lacks what h_t contributes to dc")          \
    FAULT(too_early, "dc is multiplied by f before the gates use it: the factor f is on the way "  \
                     "to c_{t-1} alone")

#define NAME(name, sentence) name,
typedef enum Fault { FAULTS(NAME) } Fault;

static void faulty(const Case *all, const Gradient *out)
{
    const Fault fault = (Fault)all->fault;
    const int H = all->size[0];
    const int first = fault == f_i_order ? H : 0, third = fault == o_c_order ? 3 * H : 2 * H;
    for (int j = 0; j < H; j++) {
        const Real *gate = all->in[GATES] + j, i = gate[0], f = gate[H], n = gate[2 * H];
        const Real o = gate[3 * H], c = all->in[C][j], before = all->in[C_BEFORE][j];
        const Real dh = all->in[DH][j], after = all->in[DC_AFTER][j], t = tanh(c);
        const Real derivative = fault == no_derivative ? 1
                                : fault == not_squared ? 1 - t
                                : fault == bare_cell   ? 1 - c * c
                                                       : 1 - t * t;
        const Real by_h = dh * (fault == no_output_gate ? 1 : o) * derivative;
        const Real sum = (fault == output_dropped ? 0 : by_h) + (fault == dropped ? 0 : after);
        const Real dc = fault == by_dh ? dh : fault == too_early ? sum * f : sum;
        const bool exchanged = fault == factors_exchanged;
        const Real di = dc * (exchanged ? before : n);
        const Real df = dc * (exchanged ? n : fault == late_cell ? c : before);
        const Real dn = dc * (fault == candidate_by_f ? f : fault == candidate_alone ? 1 : i);
        const Real dout = (fault == o_by_dc ? dc : dh) * (fault == o_bare ? c : t);
#define SIGMOID(s)                                                                                 \
    (fault == no_functions ? 1 : fault == only_s ? s : fault == only_rest ? 1 - s : s * (1 - s))
        Real *da = out[0].data + j;
        da[first] = di * SIGMOID(i);
        da[H - first] = df * SIGMOID(f);
        da[third] = dn * (fault == no_functions        ? 1
                          : fault == candidate_linear  ? 1 - n
                          : fault == candidate_sigmoid ? n * (1 - n)
                                                       : 1 - n * n);
        da[5 * H - third] = dout * SIGMOID(o);
        out[1].data[j] =
            (fault == before_dropped ? after : sum) * (fault == before_by_i        ? i
                                                       : fault == before_without_f ? 1
                                                                                   : f);
    }
}

#define SENTENCE(name, sentence) [name] = sentence,
int main(void)
{
    return grade(&(Exercise){
        .name = "lstm_backward_step",
        .outputs = { "da", "dc_before" },
        .fills = true,
        .make = make,
        .student = student,
        .faulty = faulty,
        .faults = { FAULTS(SENTENCE) },
    });
}
