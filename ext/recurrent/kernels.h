/* What op_lstm and op_gru have in common: the arguments of their kernels and of `recurrent`. */
#ifndef TAPEGRAD_RECURRENT_KERNELS_H
#define TAPEGRAD_RECURRENT_KERNELS_H

#include "ext/recurrent/recurrent.h"
#include "extend.h"

/* A pass of a layer in one direction over B sequences of N positions; H hidden units with G gates
 * each. All elements are Real. Step s of sequence b is position s, or, in the reverse direction,
 * lengths[b] - 1 - s. */
typedef struct Recurrence {
    int64_t B, N, G, H;
    bool reverse;
    const int32_t *lengths;        /* [B], or NULL: N each */
    const Real *weight;            /* W_hh [G H, H] */
    const Real *bias_ih, *bias_hh; /* [G H] */
    Real *gates;                   /* [B, N, G H]: x W_ih^T; then the gates; then dgates */
    Real *saved;                   /* [B, N, H]: LSTM: cells; GRU: m, then dm */
    Real *out;                     /* [B, N, H] */
    Real *hidden, *cell;           /* [B, H]: the initial state, then the final one */

    /* Of the backward pass: */
    const Real *dout;         /* [B, N, H], or NULL */
    Real *dhidden, *dcell;    /* [B, H]: dL/dfinal, then dL/dinitial */
    const Real *previous;     /* [B, N, H]: h of the step before */
    const Real *initial_cell; /* [B, H], or NULL: zeros */

    Precision precision; /* of CUDA's products */
} Recurrence;

SHARED_FUNCTION int64_t length_of(const Recurrence *r, int64_t b)
{
    return r->lengths ? r->lengths[b] : r->N;
}

/* The position of a step of sequence b; -1 if the sequence has ended. */
SHARED_FUNCTION int64_t position_of(const Recurrence *r, int64_t b, int64_t step)
{
    const int64_t length = length_of(r, b);
    return step >= length ? -1 : r->reverse ? length - 1 - step : step;
}

/* The kernels of a cell. */
typedef struct CellKernels {
    /* The steps of a layer one after another: from gates = x W_ih^T to out and the final state. */
    void (*forward)(Recurrence r);
    /* to dgates, da, and the initial state's gradient */
    void (*backward)(Recurrence r);
    /* makes du, the gradient of W_hh h, of da in r.gates; NULL: they are equal */
    void (*hidden_gates)(Recurrence r);
    /* previous [B, N, H] = h of the step before, 0 after a sequence's end; initial [B, H], or NULL:
     * zeros */
    void (*previous_hidden)(Real *previous, const Real *initial, Recurrence r);
} CellKernels;
extern const CellKernels lstm_plain, lstm_cpu, lstm_cuda, gru_plain, gru_cpu, gru_cuda;
extern const CellKernels *const lstm_kernels[KERNEL_TABLES], *const gru_kernels[KERNEL_TABLES];

/* Of several tables: */
C_FUNCTION void gru_hidden_gates_plain(Recurrence r);
C_FUNCTION void previous_hidden_plain(Real *previous, const Real *initial, Recurrence r);
C_FUNCTION void previous_hidden_cuda(Real *previous, const Real *initial, Recurrence r);

/* Of plain kernels. b_hh,k + sum_j W_hh,kj h_j, an element of u. */
C_FUNCTION Real hidden_product(const Recurrence *r, int64_t k, const Real *h);
/* dh [H] += W_hh^T du, for the rows [first, first + count) of W_hh; du [count] */
C_FUNCTION void add_hidden_gradient(const Recurrence *r, Real *dh, int64_t first, int64_t count,
                                    const Real *du);
/* Zeroes the rows of x [B, N, columns] after the end of sequence b. */
C_FUNCTION void zero_after_end(const Recurrence *r, int64_t b, Real *x, int64_t columns);

/* The starts of error messages. */
typedef struct RecurrentLabels {
    const char *operation, *x, *weight_ih, *weight_hh, *bias_ih, *bias_hh, *lengths, *hidden, *cell;
} RecurrentLabels;
#define RECURRENT_LABELS(name)                                                                     \
    {                                                                                              \
        name, name ": x", name ": weight_ih", name ": weight_hh", name ": bias_ih",                \
            name ": bias_hh", name ": lengths", name ": hidden", name ": cell"                     \
    }

/* A kind of cell: the LSTM has 4 gates and besides h the state c, the GRU 3 gates. */
typedef struct RecurrentKind {
    RecurrentLabels labels;
    int64_t G;
    bool has_cell;
    const CellKernels *const *kernels; /* [KERNEL_TABLES] */
} RecurrentKind;

typedef struct RecurrentInputs {
    Tensor *x;
    RecurrentWeights weights;
    Tensor *lengths, *hidden, *cell; /* or NULL */
    bool reverse;
} RecurrentInputs;

/* op_lstm and op_gru. final_hidden and final_cell may be NULL. */
Tensor *recurrent(Tape *tape, const RecurrentKind *kind, RecurrentInputs inputs,
                  Tensor **final_hidden, Tensor **final_cell);

#endif
