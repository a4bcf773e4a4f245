/* What the files of nn/ share, and what optim/ uses of Params and programs do not. */
#ifndef TAPEGRAD_NN_INTERNAL_H
#define TAPEGRAD_NN_INTERNAL_H

#include "nn/nn.h"
#include "nn/params_clip.h"
#include "tensor/internal.h"

/* A weight's path name, or one with a prefix in a file; weights leave PREFIX_ROOM bytes free. */
enum { NAME_BYTES = 256, PREFIX_ROOM = 32 };
typedef struct Name {
    char text[NAME_BYTES];
} Name;

/* "path.name", or "name" alone when the path is "". Raises when it is too long for a weight. */
Name nn_name(const char *path, const char *name);

/* ------------------------------------------------------------------------------------ for optim/ */

/* In a checkpoint the names of the optimiser's entries start with this. */
#define STATE_PREFIX "optimizer."

/* Lays storage out unless that was done; NULL, or what went wrong, the end of a sentence. */
const char *params_lay_out(Params *params);

/* All weights and all gradients as flat buffers of params_flat_count numbers, laid out first; raise
 * when memory is exhausted. Padding between weights is zero in both, and gradients that were empty
 * become zero. */
int64_t params_flat_count(const Params *params);
Real *params_flat_values(Params *params);
Real *params_flat_gradients(Params *params);

/* To be called after the values were written; an optimizer's kernel instead writes to
 * params_flat_bf16 too, their copy in bf16, NULL where there is none (yet). */
void params_written(const Params *params);
void *params_flat_bf16(const Params *params);

/* What clipping leaves in device memory; NULL while storage is not laid out, and zeros at first. */
Clipping *params_clipping(const Params *params);

/* params_count entries for a file, one a weight, that read from host: a copy of a flat buffer laid
 * out like the values. Their names get a prefix ("" for the weights themselves) and lie in names. */
void params_file_entries(Params *params, const char *prefix, const Real *host, FileEntry *entries,
                         Name *names);

/* Reads them back into host, with zeros as padding. */
bool params_file_read(Params *params, const TensorFile *file, const char *prefix, Real *host);

/* ---------------------------------------------------------------------------------- for the layers */

/* What the initial values of a weight, or other numbers, of this name are drawn from. */
Random params_random(const Params *params, const char *name);

/* params_constant that returns NULL when memory is exhausted. */
Tensor *params_try_constant(Params *params, const Real *host, Shape shape);

/* The config with defaults for its zeros; raises, as function, where a field makes no sense. */
TransformerConfig nn_transformer_config(const char *function, TransformerConfig config);

/* Positions that a causal attention remembers, for nn_transformer_prefill. */
typedef struct AttentionMemory {
    Tensor *sums;        /* linear: [B, H, F, D + 1], of the positions before these, */
    Real *sums_after;    /* and where to put those that these are in too */
    Real *keys, *values; /* softmax: where to put them, [B, H, max_length, D], from the first */
    int64_t max_length;
} AttentionMemory;

/* nn_attention_forward and nn_transformer_layer_forward, which have no memory: NULL. */
Tensor *nn_attention_remembering(Tape *tape, const MultiHeadAttention *attention, Tensor *x,
                                 Tensor *key_lengths, const AttentionMemory *memory);
Tensor *nn_transformer_layer_remembering(Tape *tape, const TransformerLayer *layer, Tensor *x,
                                         Tensor *key_lengths, const AttentionMemory *memory);

#endif
