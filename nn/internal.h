/* Internals of nn/: shared by its files, and the parts of Params that optim/ uses. */
#ifndef TAPEGRAD_NN_INTERNAL_H
#define TAPEGRAD_NN_INTERNAL_H

#include "nn/nn.h"
#include "tensor/internal.h"

/* A weight's path name, or an entry's name in a file: a path name behind a prefix of at most
 * PREFIX_BYTES bytes. */
enum { NAME_BYTES = 256, PREFIX_BYTES = 32 };
typedef struct Name {
    char text[NAME_BYTES];
} Name;

/* "path.name", or "name" when the path is "". Raises when the result is too long for a weight. */
Name nn_name(const char *path, const char *name);

/* --------------------------------------------------------------------------- for nn/ and optim/ */

/* The result of gradient clipping. It is in device memory, where a replayed step finds it. */
enum { CLIP_PARTS = 256 };
typedef struct Clipping {
    double parts[CLIP_PARTS]; /* partial sums of squares */
    double norm;              /* of all gradients, before scaling */
    bool done;                /* the norm was computed at least once */
} Clipping;

typedef struct Weight Weight;

/* A tensor that is not a weight. Files have an entry for it if it has a name. */
typedef struct Constant Constant;
struct Constant {
    Tensor tensor;
    Name name;
    bool required; /* in every file; without it a file may lack the entry */
    Constant *next;
};

/* Elements first ... first + count - 1 of a flat buffer. */
typedef struct FlatRange {
    int64_t first, count;
} FlatRange;

/* How processes that train together divide the flat buffers: distributed/shards.c. Each process
 * steps the weights of its own range. All functions are collective: all processes call them in the
 * same order. */
typedef struct Shards {
    FlatRange own;
    int rank; /* 0: this process writes the files of all */
    /* The own range of the gradients becomes the mean over the processes. Raises, as function, if
     * none has a gradient. */
    void (*reduce)(const char *function, Params *params);
    /* The sum over the processes, in their order. */
    double (*sum)(double part);
    /* A buffer's ranges, from those that own them, to all; and from `part`, the own range, into
     * `whole` of rank 0. */
    void (*gather)(const Params *params, Real *flat);
    void (*collect)(const Params *params, Real *whole, const Real *part);
    /* Whether all processes were successful; if one was not, tapegrad_error() has its sentence. If
     * all were, raises unless their optimizers have taken the same steps. */
    bool (*agree)(bool ok, int64_t steps);
} Shards;

struct Params {
    Device *device;
    uint64_t seed;
    Weight *weights, **weights_end;
    Constant *constants;
    int64_t flat_count;        /* elements of a flat buffer, padding included */
    Block *values, *gradients; /* NULL until they are allocated */
    Block *bf16;               /* the values in bf16; NULL until a product needs them */
    Clipping *clipping;        /* stored after the gradients */
    bool clipped;              /* the gradients were, since they were empty */
    Shards *shards;            /* NULL: one process has all */
    bool reduced;              /* the gradients over the processes, since they were empty */
    int frozen_version;        /* calls of params_set_requires_grad */
    Tensor flat_values, flat_gradients;
    bool freed; /* the storage, but not the handles, which report their use */
    struct Params *next_freed;
    char error[192]; /* why the allocation failed */
};

/* The weight's first element in the flat buffers, which are allocated. */
static inline int64_t params_offset(const Params *params, const Tensor *weight)
{
    return weight->data - params->flat_values.data;
}

/* Allocates the flat buffers unless they exist. Returns NULL, or the error as the end of a
 * sentence. */
const char *params_allocate(Params *params);

/* Updates the bf16 copy of the values. CUDA's kernels of optimizers write the copy themselves. */
void params_written(const Params *params);

/* Whether a pattern matches a weight's path name: params_pattern.c. params_check_pattern raises, as
 * function, unless a weight matches, and inside a replayed step. */
bool params_matches(const char *pattern, const Tensor *weight);
void params_check_pattern(const char *function, const Params *params, const char *pattern);

/* The elements that this process steps, and their gradients, summed over the processes. Raises, as
 * function, if weights require a gradient and none has one. */
FlatRange params_range(const Params *params);
Real *params_sum_gradients(const char *function, Params *params);
/* Whether some weight has a gradient, or none requires one; and the error, as of function. */
bool params_have_gradients(const Params *params);
__attribute__((noreturn)) void params_raise_no_gradients(const char *function);

/* The prefix of an optimizer's entries in a checkpoint. */
#define STATE_PREFIX "optimizer."

/* The type of Reals in a file. */
#ifdef TAPEGRAD_DOUBLE
static const FileType FILE_TYPE_OF_REAL = FILE_F64;
#else
static const FileType FILE_TYPE_OF_REAL = FILE_F32;
#endif

/* Flat buffers in a file: one entry per buffer and weight, whose name is the weight's path name
 * behind the buffer's prefix. */
enum { MAX_FILE_PARTS = 3 };
typedef struct FilePart {
    const char *prefix; /* "" for the weights themselves */
    Real *data;         /* in device memory, with the layout of this range of the values */
    FlatRange range;    /* to write a file: all */
} FilePart;
typedef struct FileParts {
    int count;
    FilePart list[MAX_FILE_PARTS];
} FileParts;

/* Write and read parts. They return false on failure, reported as of function; reading then changes
 * nothing. An entry of no part is an error, unless its name starts with ignored. */
bool params_save_parts(const char *function, Params *params, const FileParts *parts,
                       const FileMetadata *metadata, int metadata_count, const char *path);
bool params_load_parts(const char *function, Params *params, const FileParts *parts,
                       const char *ignored, const TensorFile *file, const char *path);

/* ------------------------------------------------------------------------------- for the layers */

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

/* The standard deviation initial_std / sqrt(2 layers) of weights whose products are added to the
 * residual stream, two per layer: the variance of their sum does not grow with the depth (Radford
 * et al. 2019, section 2.3). */
double nn_residual_std(const TransformerConfig *config);

/* The config with its zeros replaced by defaults; raises, as function, when a field is out of
 * range, or when no layer's attention reads it. nn_layer_config: of one layer, whose attention is
 * config.attention. */
TransformerConfig nn_transformer_config(const char *function, TransformerConfig config);
TransformerConfig nn_layer_config(const char *function, TransformerConfig config);

/* The config of this layer of a transformer: its attention, without what that does not read. */
TransformerConfig nn_config_of_layer(const TransformerConfig *config, int64_t layer);

/* Added to the normalizer of linear attention. */
#define ATTENTION_EPS 1e-6

/* A layer's recurrent state, or its KV cache of softmax attention. A tensor that the layer does not
 * have has no device. */
typedef struct LayerState {
    Tensor sums;         /* linear: [S, z], [B, H, F, D + 1]; unnormalized S, [B, H, F, D]; the
                          * delta rule: S, [B, H, D, D] */
    Tensor convolution;  /* [B, taps - 1, 3 H D]: the inputs of the positions before */
    Tensor keys, values; /* softmax: [B, H, max_length, D]; Real, or bf16 on the CPU */
} LayerState;

/* How attention continues from a state. */
typedef struct AttentionCache {
    const LayerState *state;              /* recurrent: read; softmax: appended to */
    Real *sums_after, *convolution_after; /* output: the recurrent state after these positions */
    const int32_t *counts;                /* softmax, on the host: positions before these, [B] */
    Tensor *lengths; /* softmax: int32 [B H], of each head's keys with one position more: attend to
                      * the cache; NULL: to x alone */
} AttentionCache;

/* nn_attention_forward with a cache, nn_transformer_forward with one per layer; or NULL. */
Tensor *nn_attention_forward_cached(Tape *tape, const Attention *attention, Tensor *x,
                                    AttentionOptions options, const AttentionCache *cache);
Tensor *nn_transformer_forward_cached(Tape *tape, const Transformer *transformer, Tensor *x,
                                      AttentionOptions options, const AttentionCache *caches);

#endif
