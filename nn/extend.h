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
 * required: files without it, such as a running statistic, cannot be loaded. Raises, as function,
 * when memory is exhausted. */
Tensor *params_new_constant(const char *function, Params *params, const char *name, Shape shape,
                            bool required);

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
 * A kind is a struct that begins with an AttentionKind; its options follow, and in a layer's own
 * copy its weights. A wrapper, such as gates, has the properties of the kind that it wraps, but for
 * those that it changes. */

/* Where a layer's positions stand in longer sequences. NULL functions: they are whole sequences. */
typedef struct AttentionContext AttentionContext;

/* The effect of positions on a state S: *state is the state after them from 0, and *transition says
 * how they multiply S (see StatesBefore). operands: the caller's. */
typedef void StateEffect(Tape *tape, const void *operands, Tensor **state, Tensor **transition);

struct AttentionContext {
    AttentionOptions options;
    Tensor *x;         /* the layer's input, [B, N, width] */
    Tensor *log_decay; /* of the positions, [B, N, H]; NULL: they do not decay */
    /* The state before the positions: of the kind's states, the one with this index. */
    Tensor *(*state_before)(Tape *tape, const AttentionContext *context, int state,
                            StateEffect *effect, const void *operands);
    /* Keeps the state after them. */
    void (*state_after)(const AttentionContext *context, int state, const Tensor *after);
    /* Attention to all keys up to the positions, of packed [B, N, 3 H, D]: a KV cache. */
    Tensor *(*attend)(Tape *tape, const AttentionContext *context, Tensor *packed,
                      SoftmaxAttentionOptions options);
    const void *own; /* of who made the context */
};

static inline Tensor *state_before(Tape *tape, const AttentionContext *context, int state,
                                   StateEffect *effect, const void *operands)
{
    return context->state_before ? context->state_before(tape, context, state, effect, operands)
                                 : NULL;
}

/* nn_transformer_forward with a context per layer. */
Tensor *nn_transformer_forward_in(Tape *tape, const Transformer *transformer, Tensor *x,
                                  const AttentionContext *contexts);

/* Added to the normalizer of linear attention. */
#define ATTENTION_EPS 1e-6

/* B sequences of heads whose queries and keys have key_dim elements, and values head_dim. */
typedef struct AttentionSizes {
    int64_t B, heads, key_dim, head_dim;
} AttentionSizes;

/* A recurrent state, Real. */
typedef struct AttentionState {
    const char *name; /* of its entry in files */
    Shape shape;      /* [B, ...] */
} AttentionState;
enum { MAX_ATTENTION_STATES = 4 };

struct AttentionKind {
    const char *name;           /* "causal linear": for sentences */
    const char *projections[4]; /* what the joined input product computes, "query", ..., NULL */
    const AttentionKind *inner; /* the kind that it wraps, or NULL */
    bool crosses;               /* queries and keys may be of different sequences */
    bool takes_mask;
    bool decays;           /* it reads the context's log_decay */
    bool is_unnormalized;  /* nothing bounds its results */
    bool has_cache;        /* a decode step attends to the keys of the positions before */
    int64_t window, sinks; /* of a kind with a cache: a step attends to the last `window` positions,
                            * its own included, and to the first `sinks`; a window of 0: to all */
    int states;            /* it continues from: their number, at most MAX_ATTENTION_STATES */
    AttentionState (*state)(const AttentionKind *kind, int state, AttentionSizes sizes);
    /* A copy with the weights of the layer `name`; NULL: it has none. */
    const AttentionKind *(*of_layer)(const AttentionKind *kind, Params *params, const char *name,
                                     const TransformerConfig *config);
    /* query, key and value [B, N, H, D], returned in value's shape; or key and value NULL and query
     * packed, with all projections: [B, N, 3 H, D]. */
    Tensor *(*attend)(Tape *tape, const AttentionKind *kind, Tensor *query, Tensor *key,
                      Tensor *value, const AttentionContext *context);
};

/* Zeroed memory that lives until params_free: kinds are made in it. */
void *params_memory(Params *params, size_t bytes);

/* The kind; if it is NULL, causal linear attention. */
const AttentionKind *nn_kind_or_default(Params *params, const AttentionKind *kind);

/* What a wrapper begins as: the inner kind's properties and states, without of_layer and attend. */
AttentionKind nn_kind_around(const AttentionKind *inner);

/* The kind with the weights of a layer, if it has any. */
static inline const AttentionKind *nn_kind_of_layer(const AttentionKind *kind, Params *params,
                                                    const char *name,
                                                    const TransformerConfig *config)
{
    return kind->of_layer ? kind->of_layer(kind, params, name, config) : kind;
}

/* The options of linear and causal linear attention; NULL: another kind. */
const CausalLinearConfig *nn_linear_options(const AttentionKind *kind);

#pragma GCC visibility pop

#endif
