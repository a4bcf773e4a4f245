/* What op_lstm and op_gru have in common: arguments, products over all positions, gradients. */
#ifndef TAPEGRAD_OPS_RECURRENT_RECURRENCE_H
#define TAPEGRAD_OPS_RECURRENT_RECURRENCE_H

#include "ops/recurrent/kernels.h"
#include "ops/shared/internal.h"

/* The starts of error messages. */
typedef struct RecurrentLabels {
    const char *operation, *x, *weight_ih, *weight_hh, *bias_ih, *bias_hh, *lengths, *hidden, *cell;
} RecurrentLabels;
#define RECURRENT_LABELS(name)                                                                     \
    {                                                                                              \
        name, name ": x", name ": weight_ih", name ": weight_hh", name ": bias_ih",                \
            name ": bias_hh", name ": lengths", name ": hidden", name ": cell"                     \
    }

/* A kind of cell. */
typedef struct RecurrentKind {
    RecurrentLabels labels;
    int64_t G;
    bool has_cell; /* besides h, the state contains c */
    void (*forward)(Device *device, Recurrence r);
    void (*backward)(Device *device, Recurrence r);
    /* NULL, or makes gates, the gradient of x W_ih^T, that of h W_hh^T */
    void (*hidden_gates)(Device *device, Recurrence r);
} RecurrentKind;

typedef struct RecurrentInputs {
    Tensor *x, *weight_ih, *weight_hh, *bias_ih, *bias_hh; /* as op_lstm */
    Tensor *lengths, *hidden, *cell;                       /* or NULL */
    bool reverse;
} RecurrentInputs;

/* op_lstm and op_gru. final_hidden and final_cell may be NULL. */
Tensor *recurrent(Tape *tape, const RecurrentKind *kind, RecurrentInputs inputs,
                  Tensor **final_hidden, Tensor **final_cell);

#endif
