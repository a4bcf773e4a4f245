/* Internals of nn/: shared by its files, and the parts of Params that optim/ uses. */
#ifndef TAPEGRAD_NN_INTERNAL_H
#define TAPEGRAD_NN_INTERNAL_H

#include "nn/extend.h"
#include "tensor/internal.h"

#include <stddef.h>

/* --------------------------------------------------------------------------- for nn/ and optim/ */

enum { ALIGNMENT = 16 }; /* elements: 64 bytes of float */

typedef struct Weight Weight;
struct Weight {
    Tensor tensor;
    Tensor gradient;
    Name name;
    Initializer initializer;
    int64_t offset;
    bool is_whole; /* of joined weights, which have it as the base of their tensors */
    Weight *next;  /* in order of registration */
};

/* A tensor that is not a weight. Files have an entry for it if it has a name. */
typedef struct Constant Constant;
struct Constant {
    Tensor tensor;
    Name name;
    bool required; /* in every file; without it a file may lack the entry */
    Constant *next;
};

/* The first of these constants that has a name, or NULL. */
static inline Constant *saved_constant(Constant *constant)
{
    while (constant && !constant->tensor.name)
        constant = constant->next;
    return constant;
}

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

/* Memory for kinds of attention. */
typedef struct Memory {
    struct Memory *next;
    max_align_t bytes[];
} Memory;

struct Params {
    Device *device;
    uint64_t seed;
    Weight *weights, **weights_end;
    Constant *constants;
    Memory *memory;
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

/* For a tensor's `allocate` and `bf16_copy`. */
const char *params_allocate_weights(Tensor *tensor);
Real *params_bf16_copy(Tensor *tensor, bool written);

/* Allocates the flat buffers unless they exist. Returns NULL, or the error as the end of a
 * sentence. */
const char *params_allocate(Params *params);

/* The elements that this process steps, and their gradients, summed over the processes. Raises, as
 * function, if weights require a gradient and none has one. */
FlatRange params_range(const Params *params);
Real *params_sum_gradients(const char *function, Params *params);
/* Whether some weight has a gradient, or none requires one; and the error, as of function. */
bool params_have_gradients(const Params *params);
__attribute__((noreturn)) void params_raise_no_gradients(const char *function);

/* The type of Reals in a file. */
#ifdef TAPEGRAD_DOUBLE
static const FileType FILE_TYPE_OF_REAL = FILE_F64;
#else
static const FileType FILE_TYPE_OF_REAL = FILE_F32;
#endif

/* Flat buffers in a file: one entry per buffer and weight, whose name is the weight's path name
 * behind the buffer's prefix. */
enum { MAX_FILE_PARTS = 4 };
typedef struct FilePart {
    const char *prefix; /* "" for the weights themselves */
    Real *data;         /* in device memory, with the layout of this range of the values */
    FlatRange range;    /* to write a file: all */
} FilePart;
typedef struct FileParts {
    int count;
    FilePart list[MAX_FILE_PARTS];
} FileParts;

/* Write and read parts. They return false on failure, and the error's sentence names `function`.
 * Reading then changes nothing. An entry of no part is an error, unless its name starts with
 * ignored. */
bool params_save_parts(const char *function, Params *params, const FileParts *parts,
                       const FileMetadata *metadata, int metadata_count, const char *path);
bool params_load_parts(const char *function, Params *params, const FileParts *parts,
                       const char *ignored, const TensorFile *file, const char *path);

/* ------------------------------------------------------------------------------- for the layers */

/* The standard deviation initial_std / sqrt(2 layers) of weights whose products are added to the
 * residual stream, two per layer: the variance of their sum does not grow with the depth (Radford
 * et al. 2019, section 2.3). */
double nn_residual_std(const TransformerConfig *config);

/* The config with its zeros replaced by defaults; raises, with the name `function`, when a field is
 * out of range. */
TransformerConfig nn_transformer_config(const char *function, TransformerConfig config);

/* Raises, as function, unless 0 <= choice <= last: "there is no NOUN 7". */
void nn_need_choice(const char *function, const char *noun, int choice, int last);

/* The context of whole sequences, or of those that options.states_before continues. */
AttentionContext nn_attention_context(AttentionOptions options);

/* nn_attention_forward in a context. */
Tensor *nn_attention_forward_in(Tape *tape, const Attention *attention, Tensor *x,
                                AttentionContext context);

#endif
