/* The arguments of all attention operations: validation, and the structs that kernels take. */
#ifndef TAPEGRAD_OPS_ATTENTION_SHARED_ARGUMENTS_H
#define TAPEGRAD_OPS_ATTENTION_SHARED_ARGUMENTS_H

#include <float.h>
#include <math.h>

#include "ops/ops.h"
#include "tensor/kernel.h"

/* Query, key and value of B sequences and H heads. Head h of position n of sequence b is stored at
 * query + (b N + n) query_stride + h D; key and value likewise. The strides are H D, H D and H M
 * for three tensors, and all 3 H D for one packed tensor. With offsets the B sequences are
 * concatenated: sequence b has the positions offsets[b] <= n < offsets[b + 1] and is stored at
 * query + offsets[b] query_stride; N is the total number of positions. Softmax attention keeps
 * B = 1, and the sequences are `documents`. */
typedef struct AttentionInputs {
    const Real *query;          /* [B, N, H, D] */
    const Real *key;            /* [B, keys, H, D] */
    const Real *value;          /* [B, keys, H, M] */
    const int32_t *key_lengths; /* [B], or NULL: every sequence has all keys */
    const int32_t *offsets;     /* [B + 1], or [documents + 1], or NULL */
    const Real *mask;           /* of softmax attention, or NULL: attention_mask_at */
    const Real *log_decay;      /* of softmax attention, [B, N, H], or NULL: all 0 */
    const Real *sink_logits;    /* of softmax attention, [H], or NULL: none */
    int64_t query_stride, key_stride, value_stride;
    int64_t mask_sequence_stride, mask_head_stride; /* 0: the same mask for all of them */
    int64_t window, sinks, prefix, documents;       /* of softmax attention: softmax/visible.h */
    int64_t B, N, keys, H, D, M;
} AttentionInputs;

/* Offsets in Reals of position n of head h of sequence b in query, key, value and their gradients,
 * without offsets; and the index of its row in out and log_sum, [B, N, H]. */
static inline int64_t attention_query_at(const AttentionInputs *a, int64_t b, int64_t h, int64_t n)
{
    return (b * a->N + n) * a->query_stride + h * a->D;
}
static inline int64_t attention_key_at(const AttentionInputs *a, int64_t b, int64_t h, int64_t n)
{
    return (b * a->keys + n) * a->key_stride + h * a->D;
}
static inline int64_t attention_value_at(const AttentionInputs *a, int64_t b, int64_t h, int64_t n)
{
    return (b * a->keys + n) * a->value_stride + h * a->M;
}
static inline int64_t attention_row_at(const AttentionInputs *a, int64_t b, int64_t h, int64_t n)
{
    return (b * a->N + n) * a->H + h;
}

/* Of query n and key 0 in the mask; the other keys follow. */
static inline int64_t attention_mask_at(const AttentionInputs *a, int64_t b, int64_t h, int64_t n)
{
    return b * a->mask_sequence_stride + h * a->mask_head_stride + n * a->keys;
}

/* sum_c x_c y_c, of plain kernels */
static inline double attention_dot(const Real *x, const Real *y, int64_t n)
{
    double sum = 0;
    for (int64_t c = 0; c < n; c++)
        sum += x[c] * y[c];
    return sum;
}

/* Scratch memory of plain kernels: n doubles */
static inline double *attention_workspace(int64_t n)
{
    return (double *)(void *)device_workspace(n * (int64_t)(sizeof(double) / sizeof(Real)));
}
static inline void attention_workspace_free(const double *data)
{
    device_workspace_free((const Real *)(const void *)data);
}

/* d <- x [rows, columns], to rows `stride` apart from `at` on */
static inline void attention_contribute(Gradient d, int64_t at, int64_t stride, const double *x,
                                        int64_t rows, int64_t columns)
{
    for (int64_t k = 0; d.data && k < rows * columns; k++)
        gradient_add(d, at + k / columns * stride + k % columns, (Real)x[k]);
}

/* Arguments and options of linear attention: see CausalLinearAttentionOptions in ops.h. */
typedef struct LinearScan {
    AttentionInputs x;
    FeatureMap features;
    Real eps;
    AttentionForm form;
    int64_t chunk;         /* 0: chosen by form, device and sizes */
    bool unnormalized;     /* no divisor: values and states have no last column */
    const Real *log_decay; /* [B, N, H], or NULL: all 0 */
    const Real *state;     /* [B, H, D, M + 1], unnormalized [B, H, D, M]; or NULL: all 0 */
} LinearScan;

/* M + 1, the columns of v~ and of the states, or M if there is no divisor */
static inline int64_t linear_scan_columns(const LinearScan *s)
{
    return s->x.M + !s->unnormalized;
}

/* Destinations of the gradients, with the strides of the arguments. The three may be one tensor:
 * for each position of a head the contributions are made in the order query, key, value. */
typedef struct AttentionGradient {
    Gradient query; /* [B, N, H, D] */
    Gradient key;   /* [B, keys, H, D] */
    Gradient value; /* [B, keys, H, M] */
} AttentionGradient;

/* Destinations of a causal scan's gradients. A kernel stores the state's, which is memory of its
 * own, and contributes the others. */
typedef struct LinearScanGradient {
    AttentionGradient x;
    Real *state;        /* like the state, or NULL */
    Gradient log_decay; /* [B, N, H] */
} LinearScanGradient;

/* Names of an operation and its arguments in error messages. */
typedef struct AttentionLabels {
    const char *name, *query, *key, *value, *key_lengths, *offsets, *state, *mask, *log_decay;
    const char *sink_logits;
} AttentionLabels;
#define ATTENTION_LABELS(name, query, key)                                                         \
    {                                                                                              \
        name, name ": " query, name ": " key, name ": value", name ": key_lengths",                \
            name ": offsets", name ": state", name ": mask", name ": log_decay",                   \
            name ": sink_logits"                                                                   \
    }

/* A packed query holds 3 tensors, query, key and value. */
enum { PACKED_QUERY = 3 };

#pragma GCC visibility push(default)

/* Raises unless the arguments are valid for an attention operation (ops.h): key and value NULL if
 * query is packed; key_lengths NULL or int32 [B], each in [1, keys]. Causal attention requires
 * N = keys. */
void op_attention_check(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key,
                        Tensor *value, Tensor *key_lengths, bool causal);

/* Promotes mixed dtypes to bf16. Both key and value may be NULL. */
void op_attention_cast_alike(Tape *tape, Tensor **query, Tensor **key, Tensor **value);

/* The kernels' view of checked arguments. */
AttentionInputs op_attention_of(const Tensor *query, const Tensor *key, const Tensor *value,
                                const Tensor *key_lengths, const Tensor *offsets);

/* Raises unless log_decay, or beta, is a Real tensor of the shape [B, N, H] with elements <= 0, or
 * in [0, 2]. On CUDA the elements are not read: kernels make results of others NaN. */
void op_attention_check_log_decay(Tape *tape, const char *label, Tensor *log_decay, Shape expected);
void op_attention_check_beta(Tape *tape, const char *label, Tensor *beta, Shape expected);

/* For the backward function of a node whose first inputs are query, key, value. */
AttentionGradient op_attention_contributions(Node *node);

#pragma GCC visibility pop

/* The arguments of a linear attention node. Its inputs are, in this order, query, key, value,
 * key_lengths, offsets, state, log_decay; tensors in the options are ignored. */
LinearScan linear_scan_of(Tensor *const inputs[7], CausalLinearAttentionOptions options);

/* Raises unless the operations have the feature map and 0 <= eps < infinity. */
void linear_attention_check_options(Tape *tape, AttentionLabels labels, FeatureMap features,
                                    double eps);

/* The same for causal attention, with its form and chunk. */
void causal_attention_check_options(Tape *tape, AttentionLabels labels,
                                    CausalLinearAttentionOptions options);

/* The checked log decay of causal linear attention as [B, N, H]: one number per head is repeated.
 * NULL: NULL. */
Tensor *causal_attention_log_decay(Tape *tape, AttentionLabels labels, const Tensor *query,
                                   const Tensor *value, Tensor *log_decay);

#endif
