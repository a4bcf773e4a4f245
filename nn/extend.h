/* The part of nn/ that layers and optimizers of one's own need, and programs do not. */
#ifndef TAPEGRAD_NN_EXTEND_H
#define TAPEGRAD_NN_EXTEND_H

#include "nn/nn.h"
#include "tensor/extend.h"

#pragma GCC visibility push(default)

/* --------------------------------------------------------------------------------------- layers */

/* A weight's path name, or an entry's name in a file: a path name after a prefix of at most
 * PREFIX_BYTES bytes. */
enum { NAME_BYTES = 256, PREFIX_BYTES = 32 };
typedef struct Name {
    char text[NAME_BYTES];
} Name;

/* "path.name", or "name" when the path is "". Raises when the result is too long for a weight. */
Name nn_name(const char *path, const char *name);

/* The generator for a weight's initial values, or for another tensor of this name. */
Random params_random(const Params *params, const char *name);

/* An uninitialized constant: see params_constant. name: NULL, or it is saved with the weights.
 * Raises, as function, when memory is exhausted. */
Tensor *params_new_constant(const char *function, Params *params, const char *name, Shape shape);

/* Initial values of a linear layer: those of nn_linear if std is 0; otherwise normal weights with
 * this standard deviation and biases of 0. */
LinearConfig nn_linear_config(int64_t in, double std);
/* name.weight of this shape, [out, ...], and name.bias [out] unless config has none: uniform within
 * 1 / sqrt of a row's elements unless config has initial values. */
Linear nn_weight_and_bias(Params *params, const char *name, Shape weight, LinearConfig config);
/* The linear layer name.part with these values. */
Linear nn_linear_part(Params *params, const char *name, const char *part, int64_t in, int64_t out,
                      double std);

/* ----------------------------------------------------------------------------------- optimizers */

/* Elements first ... first + count - 1 of a flat buffer. */
typedef struct FlatRange {
    int64_t first, count;
} FlatRange;

/* The result of gradient clipping. It is in device memory, where a replayed step finds it. */
enum { CLIP_PARTS = 256 };
typedef struct Clipping {
    double parts[CLIP_PARTS]; /* partial sums of squares */
    double norm;              /* of all gradients, before scaling */
    bool done;                /* the norm was computed at least once */
} Clipping;

/* The prefix of an optimizer's entries in a checkpoint. */
#define STATE_PREFIX "optimizer."

/* The weight's first element in the flat buffers, which are allocated. */
int64_t params_offset(const Params *params, const Tensor *weight);

/* Updates the bf16 copy of the values. CUDA's kernels of optimizers write the copy themselves. */
void params_written(const Params *params);

/* Whether a pattern matches a weight's path name: params_pattern.c. params_check_pattern raises, as
 * function, unless a weight matches, and inside a replayed step. */
bool params_matches(const char *pattern, const Tensor *weight);
void params_check_pattern(const char *function, const Params *params, const char *pattern);

/* -------------------------------------------------------------------------------- attention kinds
 * Where a layer's positions stand in longer sequences. NULL functions: they are whole sequences. */
typedef struct AttentionContext AttentionContext;

/* The effect of positions on a state S: *state is the state after them from 0, and *transition says
 * how they multiply S (see StatesBefore). operands: the caller's. */
typedef void StateEffect(Tape *tape, const void *operands, Tensor **state, Tensor **transition);

typedef enum { STATE_ATTENTION, STATE_CONVOLUTION } StateSlot;

struct AttentionContext {
    AttentionOptions options;
    Tensor *x;         /* the layer's input, [B, N, width] */
    Tensor *log_decay; /* of the positions, [B, N, H]; NULL: they do not decay */
    /* The state before the positions. */
    Tensor *(*state_before)(Tape *tape, const AttentionContext *context, StateSlot slot,
                            StateEffect *effect, const void *operands);
    /* Keeps the state after them. */
    void (*state_after)(const AttentionContext *context, StateSlot slot, const Tensor *state);
    /* Attention to all keys up to the positions, of packed [B, N, 3 H, D]: a KV cache. */
    Tensor *(*attend)(Tape *tape, const AttentionContext *context, const Attention *attention,
                      Tensor *packed, SoftmaxAttentionOptions options);
    const void *own; /* of who made the context */
};

static inline Tensor *state_before(Tape *tape, const AttentionContext *context, StateSlot slot,
                                   StateEffect *effect, const void *operands)
{
    return context->state_before ? context->state_before(tape, context, slot, effect, operands)
                                 : NULL;
}

/* The fields of TransformerConfig that some kinds read, and others raise for. */
enum {
    READS_FEATURES = 1,
    READS_FORM = 2,
    READS_GATES = 4, /* decay, convolution, output_gate */
    READS_UNNORMALIZED = 8,
    READS_ROTARY = 16,
    READS_SOFTMAX_DECAY = 32,
    READS_BETA = 64,
};

struct AttentionFunctions {
    const char *name;
    const char *projections[4]; /* what the joined input product computes, "query", ..., NULL */
    unsigned reads;
    bool takes_mask;
    bool crosses;         /* queries and keys may be of different sequences */
    bool is_causal;       /* it continues from a state, or from keys, before the positions */
    bool is_unnormalized; /* no normalizer bounds its results: an RMS norm per head follows */
    /* Adds weights of its own to a layer; NULL: it has none. */
    void (*add)(Params *params, const char *name, Attention *attention,
                const TransformerConfig *config);
    /* The shape of the state of B sequences, Real; NULL: none, but keys */
    Shape (*state_shape)(const Attention *attention, int64_t B);
    /* query, key and value [B, N, H, D], returned in this shape; or key and value NULL and query
     * packed, with all projections: [B, N, 3 H, D]. */
    Tensor *(*attend)(Tape *tape, const Attention *attention, Tensor *query, Tensor *key,
                      Tensor *value, const AttentionContext *context);
};

#pragma GCC visibility pop
#endif
