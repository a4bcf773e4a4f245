/* Generation: a causal transformer as a recurrent network (Katharopoulos et al. 2020, section 3.4,
 * equations 16 to 20), one position per decode step. Linear attention has a recurrent state of
 * constant size, so a step takes constant time and memory; softmax attention has a KV cache.
 * README.md, beside this file, is the map of the code. */
#ifndef TAPEGRAD_DECODE_H
#define TAPEGRAD_DECODE_H

#include "nn/nn.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

typedef struct TransformerState TransformerState;

/* A field left 0 means its default, the first value in its comment. */
typedef struct GenerationConfig {
    int64_t sequences;   /* 1: the batch size */
    int64_t max_length;  /* 1024: the maximum number of positions per sequence, of linear attention
                          * too. The KV cache is allocated for them, or with a window for sinks +
                          * window positions; the recurrent state has one size */
    Precision precision; /* PRECISION_FLOAT32; PRECISION_TF32, of products, on CUDA only. With
                          * PRECISION_BF16, on the CPU only, products read bf16 copies of the
                          * weights, which follow the weights; the KV cache is stored in bf16 */
    bool int8_weights;   /* false; true, on the CPU: products read 8-bit copies of the weights with
                          * one scale per row, made with the state, in any precision */
} GenerationConfig;

/* S = 0, z = 0 (equations 16, 17) or an empty KV cache for every sequence. The caller frees the
 * state with nn_transformer_state_free; the transformer's Params must outlive it. All weights must
 * be registered before, as this allocates the flat buffers. Raises unless the attention of each
 * layer is causal linear (with any feature map), causal softmax without a decay or a prefix, gated
 * linear or the delta rule; inside a replayed step; and if the device or a double-precision build
 * lacks the precision or 8-bit weights. Layers that differ, or have a window, a learned sink, gates
 * or rotary positions, decode in PRECISION_FLOAT32 without 8-bit weights; anything else raises. */
TransformerState *nn_transformer_state(const Transformer *transformer, GenerationConfig config);
/* Frees the state and the tensors that its functions returned. NULL is ignored. */
void nn_transformer_state_free(TransformerState *state);

/* One decode step: row b of the result is what nn_transformer_forward computes at the next position
 * of sequence b (equations 18 to 20). x [sequences, width], returns the same shape; the result
 * belongs to the state and is valid until the next step. It takes no tape. Layers that differ, or
 * have a window, a learned sink, gates or rotary positions, decode by operations: then it allocates
 * memory in the first two calls, otherwise in the first one alone. It may be part of a replayed
 * step, but on CUDA not where it decodes by operations. Raises when a sequence already has
 * max_length positions (a replay cannot detect this: the result is NaN), and when x requires a
 * gradient. */
Tensor *nn_transformer_step(TransformerState *state, Tensor *x);

/* Prefill: the same state as N decode steps, computed by the parallel form. x [sequences, N,
 * width], returns the same shape, a tensor of the tape; each sequence continues from its position.
 * lengths, int32 [sequences], each in [1, N], gives sequence b only its first lengths[b] positions;
 * its other results are undefined. NULL: N each. Raises while the tape records, while it is
 * training if a layer has dropout (decode steps have none), in a replayed step, when a sequence
 * would exceed max_length, and for softmax attention unless all sequences are empty. */
Tensor *nn_transformer_prefill(Tape *tape, TransformerState *state, Tensor *x, Tensor *lengths);

/* int32 [sequences] on the device: the position of each sequence's next step. It rises from 0 to
 * max_length - 1 and stays there. The state owns it. Use it as op_embedding's indices in a table of
 * positions. */
Tensor *nn_transformer_state_positions(const TransformerState *state);

/* Resets one sequence, or all, to position 0. Raises when there is no such sequence. */
enum { NN_ALL_SEQUENCES = -1 };
void nn_transformer_state_reset(TransformerState *state, int64_t sequence);

/* Copies sequence from_sequence of `from` to sequence `sequence` of `to`, which then continues from
 * the same position: a branch, as beam search needs it. Both are states of one transformer, or the
 * same state. Raises when the position exceeds to's max_length; inside a replayed step both states
 * need the same max_length. */
void nn_transformer_state_copy(TransformerState *to, int64_t sequence, const TransformerState *from,
                               int64_t from_sequence);

/* Writes the state to a safetensors file; reads one of the same transformer sizes, number of
 * sequences and max_length. Return false on failure, and reading changes nothing then. */
TAPEGRAD_MUST_CHECK
bool nn_transformer_state_save(const TransformerState *state, const char *path);
TAPEGRAD_MUST_CHECK
bool nn_transformer_state_load(TransformerState *state, const char *path);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
