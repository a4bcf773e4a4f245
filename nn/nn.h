/* nn/: Params, the one owner of weights, and layers built from operations. */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include "ops/ops.h"

#pragma GCC visibility push(default)

/* ---------------------------------------------------------------------------------------- Params
 * Named weights. Values lie in one flat buffer, gradients in another; storage is laid out at the
 * first use of any weight or when an optimiser is made, after which adding another one is an error.
 * Tensor handles are stable and live until params_free. A weight's initial values depend on (seed,
 * path name) alone. Path names have at most 223 bytes. */
typedef struct Params Params;

Params *params_new(Device *device, uint64_t seed);
/* Frees all weights and constants; the tapes that used them are to be reset or freed before. NULL is
 * fine. */
void params_free(Params *params);
Device *params_device(const Params *params);

typedef enum {
    INITIAL_ZERO,
    INITIAL_ONE,
    INITIAL_UNIFORM, /* uniform in [-scale, scale); scale is 0 or more */
    INITIAL_NORMAL,  /* normal with standard deviation scale */
} Initial;

typedef struct Initializer {
    Initial kind;
    Real scale;
} Initializer;

/* Registers a weight under a path name ("transformer.norm.weight"). Raises when the name is taken,
 * empty or too long, or when storage is laid out already. */
Tensor *params_add(Params *params, const char *name, Shape shape, Initializer initializer);

/* Registers several weights of one shape under one prefix, prefix.NAME.suffix for each of the
 * count names, side by side in memory; returns them as one tensor with their first axes laid end
 * to end: so one product serves query, key and value. params_find finds the single ones, which
 * show their part of it and of its gradient. */
Tensor *params_add_joined(Params *params, const char *prefix, const char *const *names, int count,
                          const char *suffix, Shape shape, Initializer initializer);

/* A copy of host's numbers that lives as long as the weights but is none: no gradient, not saved. */
Tensor *params_constant(Params *params, const Real *host, Shape shape);

/* The weight of this path name, or NULL. */
Tensor *params_find(const Params *params, const char *name);

/* How many weights there are, and their elements in all. */
int params_count(const Params *params);
int64_t params_elements(const Params *params);
/* The index-th weight, in order of registration (joined ones one by one). */
Tensor *params_at(const Params *params, int index);

/* Marks all gradients as empty: the next contribution to each stores. */
void params_zero_gradients(Params *params);

/* When the norm sqrt(sum g^2) over all gradients exceeds maximum_norm (> 0), they are scaled by
 * maximum_norm / norm (Pascanu, Mikolov, Bengio 2013, algorithm 1); when it is infinite or NaN,
 * nothing is scaled. */
void params_clip_gradients(Params *params, Real maximum_norm);
/* The norm that the last params_clip_gradients found, before it scaled. On CUDA this waits for it,
 * and is not for steps that are replayed. Raises when there was none. */
Real params_gradient_norm(const Params *params);

/* All weights under their path names, as a safetensors file. Loading needs every weight, of the
 * same shape, and tells the first that is missing, misshapen or unknown; then nothing is changed.
 * Of a checkpoint (optim_save) it takes the weights alone. */
bool params_save(Params *params, const char *path);
bool params_load(Params *params, const char *path);

/* ---------------------------------------------------------------------------------------- layers
 * Small structs of handles, to be kept by value. The path of a weight is the layer's name, a dot,
 * and the name in the comments; a layer named "" adds nothing in front. All sizes are 1 or more. What
 * takes a tape is the operation that it names, or made of those: it returns a tensor of the tape. */

typedef struct Linear {
    Tensor *weight, *bias; /* weight [out, in], bias [out] */
} Linear;

/* Weight and bias start uniform in [-1/sqrt(in), 1/sqrt(in)). */
Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out);
/* out = x weight^T + bias (op_linear): x [..., in], the result [..., out]. */
Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x);

typedef struct Embedding {
    Tensor *weight; /* [count, width] */
} Embedding;

/* A table of count rows, which start normal with deviation 1. */
Embedding nn_embedding(Params *params, const char *name, int64_t count, int64_t width);
/* The rows that indices, int32 [...] in [0, count), name (op_embedding): [..., width]. */
Tensor *nn_embedding_forward(Tape *tape, const Embedding *embedding, Tensor *indices);

typedef struct LayerNorm {
    Tensor *weight, *bias; /* [width]; start as ones and zeros */
    Real eps;              /* 1e-5 */
} LayerNorm;

LayerNorm nn_layer_norm(Params *params, const char *name, int64_t width);
/* out = (x - mean) / sqrt(variance + eps) weight + bias along the last axis (op_layernorm): x
 * [..., width], the result of the same shape. */
Tensor *nn_layer_norm_forward(Tape *tape, const LayerNorm *norm, Tensor *x);

typedef struct Dropout {
    Real probability;
} Dropout;

/* 0 <= probability < 1. */
Dropout nn_dropout(Real probability);
/* Drops while the tape records (op_dropout); with recording off it passes x on. */
Tensor *nn_dropout_forward(Tape *tape, const Dropout *dropout, Tensor *x);

/* A constant of the Params, [length, width]: column 2i holds sin(position / 10000^(2i / width)), column
 * 2i + 1 the cosine (Vaswani et al. 2017, section 3.5). Join it to an embedding with op_concat or
 * op_add. */
Tensor *nn_sinusoidal_positions(Params *params, int64_t length, int64_t width);

typedef enum {
    ATTENTION_CAUSAL_LINEAR = 1,
    ATTENTION_LINEAR,
    ATTENTION_CAUSAL_SOFTMAX,
    ATTENTION_SOFTMAX,
    ATTENTION_CAUSAL_LSH, /* op_lsh_attention: queries are keys too, and have one weight */
    ATTENTION_LSH,
} Attention;

/* A field left 0 means its default. */
typedef struct TransformerConfig {
    int64_t layers;       /* 4 */
    int64_t heads;        /* 8 */
    int64_t head_dim;     /* 32; the width is heads * head_dim */
    int64_t feed_forward; /* 4 times the width */
    Attention attention;  /* ATTENTION_CAUSAL_LINEAR */
    FeatureMap features;  /* FEATURES_ELU_PLUS_ONE: of linear attention; any of them */
    int64_t projections;  /* 2 * head_dim: of FEATURES_RANDOM, a feature each */
    AttentionForm form;   /* FORM_BEST: of causal linear attention */
    Real dropout;         /* 0 */
    Real attention_eps;   /* 1e-6: added to the normaliser of linear attention */
    int64_t lsh_rounds;   /* 1: of LSH attention */
    int64_t lsh_chunk;    /* 32: likewise */
    int64_t lsh_buckets;  /* 2 for every chunk of the sequence: likewise */
    bool pre_norm;        /* false: x = norm(x + f(x)), as in the paper; true: x = x + f(norm(x)) */
    bool gelu;            /* false: relu */
    bool no_final_norm;   /* false: the transformer ends with a norm, as in the paper's code */
} TransformerConfig;

typedef struct MultiHeadAttention {
    Linear input;  /* query, key (but of LSH) and value side by side: query.weight, key.bias, ... */
    Linear output; /* out.weight, out.bias */
    int64_t heads, head_dim;
    Attention attention;
    FeatureMap features;
    AttentionForm form;
    Real eps;
    int64_t lsh_rounds, lsh_chunk, lsh_buckets;
    Tensor *projection; /* [projections, head_dim], of FEATURES_RANDOM; else NULL */
} MultiHeadAttention;

/* Of the config it reads heads, head_dim, attention, features, projections, form, attention_eps and
 * what begins with lsh_.
 * The projection of random features is no weight: its rows, orthogonal ones, are drawn from the seed
 * and the layer's name, and not saved. */
MultiHeadAttention nn_attention(Params *params, const char *name, TransformerConfig config);
/* Draws the projection anew; of other maps than FEATURES_RANDOM it does nothing. Not in a step that
 * is replayed, but between two. */
void nn_attention_redraw(const MultiHeadAttention *attention, Random *random);
/* The heads' attention, of q, k and v made from x, by the output layer (Vaswani et al. 2017, section
 * 3.2.2): x [B, N, width], the result of the same shape. key_lengths int32 [B], each in [1, N], lets
 * sequence b see its first key_lengths[b] positions only; NULL: all. */
Tensor *nn_attention_forward(Tape *tape, const MultiHeadAttention *attention, Tensor *x,
                             Tensor *key_lengths);

/* Names: attention, norm1, ff1, ff2, norm2. */
typedef struct TransformerLayer {
    MultiHeadAttention attention;
    LayerNorm norm1, norm2;
    Linear ff1, ff2;
    Dropout dropout;
    bool pre_norm, gelu;
} TransformerLayer;

/* Post-norm: x = norm1(x + attention(x)), x = norm2(x + ff2(relu(ff1(x)))); pre-norm:
 * x = x + attention(norm1(x)), x = x + ff2(relu(ff1(norm2(x)))); with dropout after the attention,
 * the activation and ff2 (Vaswani et al. 2017, sections 3.1 and 5.4). */
TransformerLayer nn_transformer_layer(Params *params, const char *name, TransformerConfig config);
Tensor *nn_transformer_layer_forward(Tape *tape, const TransformerLayer *layer, Tensor *x,
                                     Tensor *key_lengths);

enum { NN_MAX_LAYERS = 64 };

/* Names: layers.0 and so on, norm. */
typedef struct Transformer {
    int64_t layers;
    TransformerLayer layer[NN_MAX_LAYERS];
    LayerNorm norm;
    bool has_norm;
} Transformer;

Transformer nn_transformer(Params *params, const char *name, TransformerConfig config);
/* nn_attention_redraw of every layer. */
void nn_transformer_redraw(const Transformer *transformer, Random *random);
/* All layers in turn, then the norm: x [B, N, width], the result of the same shape; key_lengths as in
 * nn_attention_forward. With recording off it holds one layer's intermediates at a time. */
Tensor *nn_transformer_forward(Tape *tape, const Transformer *transformer, Tensor *x,
                               Tensor *key_lengths);

/* ------------------------------------------------------------------------------------- generation
 * A causal transformer as a recurrent network (Katharopoulos et al. 2020, section 3.4, equations 16
 * to 20): position by position, in constant time and memory where attention is linear; softmax
 * attention keeps all keys and values so far. What it remembers of its sequences is a state. */
typedef struct TransformerState TransformerState;

/* A field left 0 means its default. */
typedef struct GenerationConfig {
    int64_t sequences;   /* 1: generated side by side */
    int64_t max_length;  /* 1024: positions a sequence, at most; linear attention's memory does not
                          * depend on it, softmax attention's is taken for as many at once */
    Precision precision; /* PRECISION_FLOAT32: of products on CUDA, or PRECISION_TF32 */
} GenerationConfig;

/* A state in which all sequences begin. The transformer's Params must outlive it. Raises unless its
 * attention is ATTENTION_CAUSAL_LINEAR (with any features) or ATTENTION_CAUSAL_SOFTMAX. This is a use
 * of the weights, which then must all be registered. */
TransformerState *nn_transformer_state(const Transformer *transformer, GenerationConfig config);
void nn_transformer_state_free(TransformerState *state);

/* The next position of every sequence: x [sequences, width], the result of the same shape, as
 * nn_transformer_forward would have it there. It belongs to the state and lasts until the next step.
 * Needs no tape, and takes no memory after the first. May be part of a step that is replayed. Raises
 * when a sequence has had its max_length positions already (where a replay cannot see that, the result
 * is not-a-number), and when x wants a gradient. */
Tensor *nn_transformer_step(TransformerState *state, Tensor *x);

/* Many positions at once, by the parallel form: x [sequences, N, width], the result of the same shape,
 * the tape's; each sequence goes on from where it stands. With lengths, int32 [sequences] in
 * [1, N], sequence b has its first lengths[b] positions only, and the rest of its results mean
 * nothing. Raises while the tape records, where softmax attention's sequences have begun, and in a
 * step that is replayed. */
Tensor *nn_transformer_prefill(Tape *tape, TransformerState *state, Tensor *x, Tensor *lengths);

/* int32 [sequences]: the position that each sequence's next step is at, from 0 on, on the device:
 * indices for op_embedding in a table of positions. It stays at max_length - 1. */
Tensor *nn_transformer_state_positions(const TransformerState *state);

/* A sequence, or all of them, begins anew. */
enum { NN_ALL_SEQUENCES = -1 };
void nn_transformer_state_reset(TransformerState *state, int64_t sequence);

/* Sequence `sequence` of to goes on as sequence `from_sequence` of from would: a branch. to and from
 * are states of one transformer, or the same state; from's position must be within to's max_length, and
 * in a step that is replayed both must have the same max_length. */
void nn_transformer_state_copy(TransformerState *to, int64_t sequence, const TransformerState *from,
                               int64_t from_sequence);

/* A state as a safetensors file. Loading needs a state of the same transformer's sizes, number of
 * sequences and max_length; when it fails nothing is changed. */
bool nn_transformer_state_save(const TransformerState *state, const char *path);
bool nn_transformer_state_load(TransformerState *state, const char *path);

#pragma GCC visibility pop
#endif
