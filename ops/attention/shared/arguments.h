/* What the attention operations share: their arguments, checked and as the kernels take them. */
#ifndef TAPEGRAD_OPS_ATTENTION_SHARED_ARGUMENTS_H
#define TAPEGRAD_OPS_ATTENTION_SHARED_ARGUMENTS_H

#include "ops/ops.h"

/* Query, key and value of B sequences, H heads: head h of position n of sequence b begins at
 * query + (b N + n) query_stride + h D, and so on. The strides are H D, H D and H M for three
 * tensors, and all 3 H D when one tensor holds the three side by side. With offsets the B sequences
 * lie end to end: sequence b has the positions from offsets[b] to offsets[b + 1], and begins at
 * query + offsets[b] query_stride; N is the sum of their positions. */
typedef struct Attention {
    const Real *query;          /* [B, N, H, D] */
    const Real *key;            /* [B, keys, H, D] */
    const Real *value;          /* [B, keys, H, M] */
    const int32_t *key_lengths; /* [B], or NULL: every sequence has all keys */
    const int32_t *offsets;     /* [B + 1], or NULL */
    int64_t query_stride, key_stride, value_stride;
    int64_t B, N, keys, H, D, M;
} Attention;

/* What linear attention does with them: see LinearAttention in ops.h. */
typedef struct LinearScan {
    Attention x;
    FeatureMap features;
    Real eps;
    AttentionForm form;
    int64_t chunk;     /* 0: by the form, the device and the sizes */
    const Real *state; /* [B, H, D, M + 1], or NULL: all 0 */
} LinearScan;

/* Where their gradients go, with the strides of the arguments. The contributions are made in the
 * order query, key, value, position by position of a head: the three may be the same tensor. */
typedef struct AttentionGradient {
    Gradient query; /* [B, N, H, D] */
    Gradient key;   /* [B, keys, H, D] */
    Gradient value; /* [B, keys, H, M] */
} AttentionGradient;

/* Where the gradients of a causal scan go. */
typedef struct LinearScanGradient {
    AttentionGradient x;
    Gradient state; /* [B, H, D, M + 1] */
} LinearScanGradient;

/* How the messages name an operation and its arguments. */
typedef struct AttentionLabels {
    const char *name, *query, *key, *value, *key_lengths, *offsets, *state;
} AttentionLabels;
#define ATTENTION_LABELS(name)                                                                     \
    {                                                                                              \
        name, name ": query", name ": key", name ": value", name ": key_lengths",                  \
            name ": offsets", name ": state"                                                       \
    }

/* Raises unless the arguments are those of an attention operation, as ops.h describes them: key and
 * value both NULL when query holds all three; key_lengths NULL or int32 [B], each in [1, keys].
 * With causal there must be as many queries as keys. */
void attention_check(Tape *tape, AttentionLabels labels, Tensor *query, Tensor *key, Tensor *value,
                     Tensor *key_lengths, bool causal);

/* The last of these alone. */
void attention_check_key_lengths(Tape *tape, AttentionLabels labels, Tensor *key_lengths, int64_t B,
                                 int64_t keys);

/* Converts the ones in Real to bf16 when another one is; key and value may be NULL. */
void attention_cast_alike(Tape *tape, Tensor **query, Tensor **key, Tensor **value);

/* The arguments as the kernels take them; they have been checked. */
Attention attention_of(const Tensor *query, const Tensor *key, const Tensor *value,
                       const Tensor *key_lengths);

/* The shape of the result, [B, N, H, M], and of one number a position and head, [B, N, H]. */
Shape attention_out_shape(const Attention *attention);
Shape attention_row_shape(const Attention *attention);

/* What linear attention is to do in one pass over the arguments of a node, its inputs in this
 * order: query, key, value, key_lengths, offsets, state. The options' tensors are not looked at. */
LinearScan linear_scan_of(Tensor *const inputs[6], LinearAttention options);

/* Raises unless the options suit checked arguments; returns them with their defaults filled in. */
LinearAttention linear_attention_options(Tape *tape, AttentionLabels labels,
                                         LinearAttention options);

/* In a backward function whose inputs are query, key, value. */
AttentionGradient attention_contributions(Node *node);

#endif
