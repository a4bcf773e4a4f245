/* nn/: Params, the one owner of weights; layers composed of operations. Shapes stand in
 * brackets, the last axis contiguous. A function raises an error (tapegrad_on_error) when an
 * argument violates its comment or memory is exhausted; one that returns bool reports a failure
 * instead. */
#ifndef TAPEGRAD_NN_H
#define TAPEGRAD_NN_H

#include "ops/ops.h"

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------------------------------- Params
 * Named weights. All values are stored in one flat buffer, all gradients in another. The buffers
 * are allocated at the first use of any weight or when an optimizer is made: until then data is
 * NULL; adding a weight afterwards is an error. Tensor handles are stable and live until
 * params_free. A weight's initial values depend on (seed, path name) alone. A path name has at most
 * 223 bytes. Tapes in several threads may read one Params at once, to evaluate or generate, with
 * recording off, after one forward pass in the same precision. Backward passes, optimizers,
 * clipping and loading write it: no other thread may use it meanwhile. */
typedef struct Params Params;

/* An empty set of weights on device. The caller owns it and frees it with params_free. */
Params *params_new(Device *device, uint64_t seed);
/* Frees all its tensors. Reset or free the tapes that used them first. NULL is ignored. */
void params_free(Params *params);
Device *params_device(const Params *params);

typedef enum {
    INITIAL_DEFAULT, /* the layer's; params_add raises */
    INITIAL_ZERO,
    INITIAL_ONE,
    /* The following raise unless scale > 0: */
    INITIAL_UNIFORM, /* uniform in [-scale, scale) */
    INITIAL_NORMAL,  /* normal with standard deviation scale */
    /* The following are for shapes [out, ..., in]; with n the product of the sizes between: */
    INITIAL_XAVIER,  /* uniform in +-scale sqrt(6 / (n (in + out)))  (Glorot and Bengio 2010) */
    INITIAL_KAIMING, /* normal with standard deviation scale sqrt(2 / (n in))  (He et al. 2015) */
} Initial;

typedef struct Initializer {
    Initial kind;
    double scale;
} Initializer;

/* Registers a weight under a path name ("transformer.norm.weight"); it requires a gradient. Raises
 * when the name is taken, empty or too long, or one that no file can have: not UTF-8,
 * "__metadata__", "optimizer...."; or when the flat buffers are already allocated. */
Tensor *params_add(Params *params, const char *name, Shape shape, Initializer initializer);

/* Registers count weights of one shape [n, ...], named prefix.NAME.suffix. Returns them as one
 * tensor [count n, ...], so that one product serves query, key and value. params_find returns the
 * single weights, which share its storage and its gradient's. Raises as params_add does, and for a
 * scalar shape. */
Tensor *params_add_joined(Params *params, const char *prefix, const char *const *names, int count,
                          const char *suffix, Shape shape, Initializer initializer);

/* A constant: it has no gradient and is not saved. Copies the elements from host. */
Tensor *params_constant(Params *params, const Real *host, Shape shape);

/* The weight with this path name, or NULL if there is none. */
Tensor *params_find(const Params *params, const char *name);

/* The number of weights, joined weights counted singly; of their elements, without padding; and the
 * weight number index in [0, params_count), in order of registration. */
int params_count(const Params *params);
int64_t params_elements(const Params *params);
Tensor *params_at(const Params *params, int index);

/* Prints a table for people: the number of elements, the shape and the name of each weight, in
 * order of registration, with "(frozen)" if it requires no gradient, and the total. */
void params_print(const Params *params, FILE *file);

/* The flat buffers as tensors [n] that the Params owns: all values, and all gradients. A gradient
 * without a contribution becomes 0. The weights follow in order of registration, each from a
 * multiple of 16 elements on; padding between them is 0 in both and must stay so. For an
 * all-reduce, statistics or a snapshot: tensor_read, tensor_write, or kernels on data, after which
 * values need tensor_written. Raise when memory is exhausted. */
Tensor *params_flat_values(Params *params);
Tensor *params_flat_gradients(Params *params);

/* to <- to + weight (from - to), for all weights, running statistics and random projections of two
 * Params on one device: with weight 1 a bitwise copy; with a small weight after each step an
 * exponential moving average, such as a slow target network (Lillicrap et al. 2016, section 3).
 * Computed on the device, also in a replayed step; gradients and what requires one stay. Raises,
 * and changes nothing, when the Params differ in a name, a shape or the order of registration, and
 * unless 0 <= weight <= 1. */
void params_average(Params *to, Params *from, double weight);

/* With false, freezes the weights whose path names match the pattern ("embedding.*": as shells
 * match file names, by * ? [a-z] [!a-z] and \, and * matches dots too); with true, unfreezes them.
 * A frozen weight requires no gradient: no backward pass computes one, so it has no part in the
 * gradient norm, and optim_step changes neither the weight (by decay or momentum) nor its m and v.
 * If only some joined weights are frozen, their gradients are computed too, and count as 0. Call it
 * between steps. If tape_replay has captured the step as a CUDA graph, call tape_reset too: the
 * graph computes the gradients that it was captured with. Raises when no name matches, and inside a
 * replayed step. */
void params_set_requires_grad(Params *params, const char *pattern, bool requires_grad);

/* g = 0 for all weights: the next contribution to each stores. */
void params_zero_gradients(Params *params);

/* Gradient clipping: g = g min(1, maximum_norm / norm) with norm = sqrt(sum g^2) over all gradients
 * (Pascanu, Mikolov, Bengio 2013, algorithm 1). A norm that is infinite or NaN leaves them
 * unchanged, and optim_step raises: a maximum_norm of INFINITY checks and scales nothing. Raises
 * unless maximum_norm > 0, and when weights require gradients but none has one, as before
 * tape_backward. */
void params_clip_gradients(Params *params, double maximum_norm);
/* Clips the gradient of each weight by itself. params_gradient_norm then returns the norm of all
 * gradients after this clipping. */
void params_clip_each_gradient(Params *params, double maximum_norm);
/* The norm before scaling, as the last params_clip_gradients computed it. On CUDA this synchronizes
 * with the device, so it must not be called in a replayed step. Raises before the first
 * params_clip_gradients. */
double params_gradient_norm(const Params *params);

/* Writes all weights, random projections and running statistics under their path names to a
 * safetensors file, also if they are NaN (see params_clip_gradients). params_load reads all from
 * such a file, or from a checkpoint of optim_save. Return false on failure, and tapegrad_error()
 * has the sentence. Reading fails when an entry is missing, has the wrong shape or is unknown, and
 * then changes nothing. */
TAPEGRAD_MUST_CHECK
bool params_save(Params *params, const char *path);
TAPEGRAD_MUST_CHECK
bool params_load(Params *params, const char *path);
/* For fine-tuning: reads the entries that fit a weight or other tensor of their name, leaves the
 * others unchanged and returns the number of weights that it read. report, unless it is NULL, is
 * called with a name and a sentence for every weight whose entry is missing or does not fit, and
 * for every entry without a weight. Returns -1 when the file cannot be read. */
typedef void LoadReport(const char *name, const char *sentence, void *context);
TAPEGRAD_MUST_CHECK
int params_load_some(Params *params, const char *path, LoadReport *report, void *context);

/* ---------------------------------------------------------------------------------------- layers
 * A layer is a small struct of tensor handles, copied by value; the Params owns the tensors. A
 * weight's path is the layer's name, a dot and the name in the comment; a layer named "" adds no
 * prefix. All sizes are 1 or more. Constructors raise as params_add does, and when a field of a
 * config is out of range. A forward function is composed of the operations that it names, and
 * raises as they do. */

enum { NN_MAX_LAYERS = 64 };

typedef struct Linear {
    Tensor *weight, *bias; /* weight [out, in], bias [out] or NULL */
} Linear;

typedef struct LinearConfig {
    Initializer weight, bias; /* INITIAL_DEFAULT: uniform in [-1/sqrt(in), 1/sqrt(in)) */
    bool no_bias;             /* false */
} LinearConfig;

Linear nn_linear_with(Params *params, const char *name, int64_t in, int64_t out,
                      LinearConfig config);
/* The same with a config of zeros. */
Linear nn_linear(Params *params, const char *name, int64_t in, int64_t out);
/* out = x weight^T + bias (op_linear): x [..., in], returns [..., out]. */
Tensor *nn_linear_forward(Tape *tape, const Linear *linear, Tensor *x);

typedef struct Embedding {
    Tensor *weight; /* [count, width] */
} Embedding;

Embedding nn_embedding_with(Params *params, const char *name, int64_t count, int64_t width,
                            Initializer weight);
/* The same from the normal distribution with standard deviation 1. */
Embedding nn_embedding(Params *params, const char *name, int64_t count, int64_t width);
/* out[..., :] = weight[indices[...], :] (op_embedding): indices int32 [...], each in [0, count). */
Tensor *nn_embedding_forward(Tape *tape, const Embedding *embedding, Tensor *indices);

typedef struct LayerNorm {
    Tensor *weight, *bias; /* [width], or NULL: ones, zeros */
    double eps;            /* 1e-5 */
} LayerNorm;

typedef struct LayerNormConfig {
    bool no_weight, no_bias; /* false */
} LayerNormConfig;

/* Weight is initialized to ones, bias to zeros. */
LayerNorm nn_layernorm_with(Params *params, const char *name, int64_t width,
                            LayerNormConfig config);
/* The same with a config of zeros. */
LayerNorm nn_layernorm(Params *params, const char *name, int64_t width);
/* out = (x - mean) / sqrt(variance + eps) weight + bias along the last axis (op_layernorm; Ba,
 * Kiros, Hinton 2016, equation 4): x [..., width], returns the same shape. */
Tensor *nn_layernorm_forward(Tape *tape, const LayerNorm *norm, Tensor *x);

typedef struct Dropout {
    double probability;
} Dropout;

/* Each element is zeroed with this probability, 0 <= probability < 1; raises otherwise. */
Dropout nn_dropout(double probability);
/* out = x mask / (1 - probability) while the tape is training (op_dropout; Srivastava et al. 2014);
 * with tape_set_training off it returns x. */
Tensor *nn_dropout_forward(Tape *tape, const Dropout *dropout, Tensor *x);

typedef struct GatedFeedForward {
    Tensor *gate_up; /* [2 inner, width]: gate.weight and up.weight, [inner, width] each */
    Tensor *down;    /* down.weight [width, inner] */
} GatedFeedForward;

/* Initial values as nn_linear's, without biases. */
GatedFeedForward nn_gated_feed_forward(Params *params, const char *name, int64_t width,
                                       int64_t inner);
/* out = down(silu(gate(x)) up(x)), of op_linear: x [..., width], returns the same shape  (Shazeer
 * 2020, GLU Variants Improve Transformer, equation 6). */
Tensor *nn_gated_feed_forward_forward(Tape *tape, const GatedFeedForward *layer, Tensor *x);

/* P[n, 2i] = sin(n / 10000^(2i / width)), P[n, 2i + 1] = cos(n / 10000^(2i / width)) (Vaswani et
 * al. 2017, section 3.5): a constant [length, width] of the Params. Combine it with an embedding by
 * op_add, or by op_broadcast_to and op_concat. */
Tensor *nn_sinusoidal_positions(Params *params, int64_t length, int64_t width);

/* A kind of attention: how a layer combines positions. The function that makes one takes its
 * options; it lives until params_free, and all layers may have it. Extensions have more kinds, some
 * of which wrap another. nn/extend.h has what a kind consists of. */
typedef struct AttentionKind AttentionKind;

/* A field left 0 means its default, the first value in its comment. */
typedef struct CausalLinearConfig {
    FeatureMap features; /* FEATURE_MAP_ELU_PLUS_ONE: phi of queries and keys */
    AttentionForm form;  /* FORM_BEST: the algorithm */
    bool unnormalized;   /* false; true: without its normalizer, which bounds results. A norm per
                          * head, which nn_gated_attention adds, does so instead */
} CausalLinearConfig;

/* op_causal_linear_attention, op_linear_attention, with eps = 1e-6, as the code of Katharopoulos et
 * al. 2020 has it. */
const AttentionKind *nn_causal_linear_attention(Params *params, CausalLinearConfig config);
const AttentionKind *nn_linear_attention(Params *params, FeatureMap features);

/* As in SoftmaxAttentionOptions. A field left 0 means its default, the first value in its
 * comment. */
typedef struct CausalSoftmaxConfig {
    int64_t window;    /* 0: none */
    int64_t sinks;     /* 0 */
    int64_t prefix;    /* 0; above 0 excludes a decay, and generation */
    bool learned_sink; /* false; true: each layer has sink_logits [H], initially 0 */
} CausalSoftmaxConfig;

/* op_causal_softmax_attention, op_softmax_attention */
const AttentionKind *nn_causal_softmax_attention(Params *params, CausalSoftmaxConfig config);
const AttentionKind *nn_softmax_attention(Params *params);

/* A field left 0 means its default, the first value in its comment. */
typedef struct TransformerConfig {
    int64_t layers;                 /* 4 */
    int64_t heads;                  /* 8 */
    int64_t head_dim;               /* 32; the width is heads * head_dim */
    int64_t feed_forward;           /* 4 times the width */
    Activation activation;          /* ACTIVATION_RELU: f of the feed-forward network */
    const AttentionKind *attention; /* NULL: causal linear attention, with its defaults */
    double dropout;                 /* 0 */
    double initial_std; /* 0: initial values as of nn_linear. Otherwise as in GPT-2, which has 0.02:
                         * weights are normal with this standard deviation, divided by sqrt(2
                         * layers) for out.weight and ff2.weight, whose products are added to the
                         * residual stream; biases are 0 */
    bool pre_norm;      /* false: x = norm(x + f(x)), as in the paper; true: x + f(norm(x)) */
    bool no_final_norm; /* false: a final norm follows the layers, as in the paper's code */
    bool recompute;     /* false; true: training keeps each layer's input alone and computes the
                         * layer again in the backward pass (tape_recompute) */
    const AttentionKind *layer_attention[NN_MAX_LAYERS]; /* attention: layer i's own, or NULL */
} TransformerConfig;

/* Multi-head attention. */
typedef struct Attention {
    Linear input;  /* joined: query, key, value; names query.weight, key.bias, ... */
    Linear output; /* out.weight, out.bias */
    int64_t heads, head_dim;
    const AttentionKind *kind; /* with the layer's weights, if the kind has any */
} Attention;

/* Ignores the config's feed_forward, activation, dropout, layer_attention and norms; uses layers
 * only to scale initial_std. */
Attention nn_attention(Params *params, const char *name, TransformerConfig config);

/* dist_states_before: returns the state before this process's positions, from each process's state
 * and transition. */
typedef Tensor *StatesBefore(Tape *tape, Tensor *state, Tensor *transition);

/* Which keys a query attends to, among those of the layer's kind of attention. */
typedef struct AttentionOptions {
    Tensor *key_lengths; /* NULL; int32 [B], each in [1, N] for N keys: keys of sequence b from
                          * position key_lengths[b] on are masked */
    Tensor *mask;        /* NULL; softmax attention: as in SoftmaxAttentionOptions; others raise */
    Tensor *positions;   /* NULL: 0, ..., N - 1; int32 [N] or [B, N]: the positions of x */
    StatesBefore *states_before;
    /* NULL; dist_states_before, for a kind that has a state and no cache, such as causal linear
     * attention, of a sequence split over processes. A convolution needs at least taps - 1
     * positions, and a kind that reads positions needs them, on all processes. Raises for other
     * kinds, and with key_lengths. */
} AttentionOptions;

/* out = concat_h(attention(x Wq_h, x Wk_h, x Wv_h)) Wo, with biases (Vaswani et al. 2017, section
 * 3.2.2): x [B, N, width], returns the same shape. */
Tensor *nn_attention_forward(Tape *tape, const Attention *attention, Tensor *x,
                             AttentionOptions options);

/* Multi-head attention from a decoder's positions to a memory's, an encoder's result. */
typedef struct CrossAttention {
    Attention attention; /* its input computes queries alone; names query.weight, out.bias, ... */
    Linear key, value;   /* of the memory; key.weight, ... */
} CrossAttention;

/* memory_width is the width of the memory. Reads the config as nn_attention does; its attention is
 * nn_softmax_attention or nn_linear_attention. */
CrossAttention nn_cross_attention(Params *params, const char *name, int64_t memory_width,
                                  TransformerConfig config);
/* out = concat_h(attention(x Wq_h, memory Wk_h, memory Wv_h)) Wo, with biases: x [B, N, width],
 * memory [B, K, memory_width], returns [B, N, width]. The options are of the memory's K positions;
 * a mask is [N, K] or [B, H, N, K]. */
Tensor *nn_cross_attention_forward(Tape *tape, const CrossAttention *cross, Tensor *x,
                                   Tensor *memory, AttentionOptions options);

/* Names: attention, norm1, ff1, ff2, norm2. */
typedef struct TransformerLayer {
    Attention attention;
    LayerNorm norm1, norm2;
    Linear ff1, ff2;
    Dropout dropout;
    bool pre_norm;
    Activation activation;
} TransformerLayer;

TransformerLayer nn_transformer_layer(Params *params, const char *name, TransformerConfig config);
/* Post-norm: x = norm1(x + attention(x)), then x = norm2(x + ff2(f(ff1(x)))).
 * Pre-norm:  x = x + attention(norm1(x)), then x = x + ff2(f(ff1(norm2(x)))).
 * f is the config's activation; dropout follows attention, f and ff2 (Vaswani et al. 2017, sections
 * 3.1 and 5.4). x [B, N, width], returns the same shape; the options are the attention's. */
Tensor *nn_transformer_layer_forward(Tape *tape, const TransformerLayer *layer, Tensor *x,
                                     AttentionOptions options);

/* Names: layers.0, layers.1, ..., norm. */
typedef struct Transformer {
    int64_t layers;
    TransformerLayer layer[NN_MAX_LAYERS];
    LayerNorm norm;
    bool has_norm, recompute;
} Transformer;

Transformer nn_transformer(Params *params, const char *name, TransformerConfig config);
/* x = layer_i(x) for every layer, then x = norm(x): x [B, N, width], returns the same shape. With
 * recording off, memory holds the intermediates of one layer at a time. Raises when there are no
 * layers. */
Tensor *nn_transformer_forward(Tape *tape, const Transformer *transformer, Tensor *x,
                               AttentionOptions options);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
#endif
