/* The generation state: every layer's recurrent state or KV cache, counts and results. A backend's
 * engine reads it too. */
#ifndef TAPEGRAD_DECODE_STATE_H
#define TAPEGRAD_DECODE_STATE_H

#include "ext/decode/decode.h"
#include "ext/features/features.h"
#include "ext/gates/gates.h"
#include "extend.h"

/* A layer's recurrent states, numbered by its kind of attention, and its KV cache of softmax
 * attention. A tensor that the layer does not have has no device. */
typedef struct LayerState {
    Tensor states[MAX_ATTENTION_STATES]; /* linear: [S, z], [B, H, F, D + 1] */
    Tensor keys, values;                 /* softmax: [B, H, slots, D]; Real, or bf16 on the CPU */
    int64_t sinks;                       /* softmax with a window: see cache_slot */
} LayerState;

/* The slot of a position's key and value in the KV cache. With a window a position attends to the
 * first `sinks` and the last `window` positions alone. So the cache has sinks + window slots, of
 * which those after the sinks are a ring buffer: position i takes the slot of position i - window,
 * which neither i nor a later position attends to. Where max_length slots hold all positions,
 * without a window or with a long one, they are in their order. */
static inline int64_t cache_slot(const LayerState *layer, int64_t position)
{
    const int64_t slots = layer->keys.shape.size[2], sinks = layer->sinks;
    return position < slots ? position : sinks + (position - sinks) % (slots - sinks);
}

/* What an engine reads of a layer's attention. */
typedef struct EngineAttention {
    int features;             /* a FeatureMap, or Features */
    const Tensor *projection; /* of FEATURES_RANDOM; otherwise NULL */
    Tensor *decay_constant;   /* as in Gates; NULL: no decay */
    Linear decay;
} EngineAttention;

/* How attention continues from a state. */
typedef struct AttentionCache {
    const LayerState *state;           /* recurrent: read; softmax: appended to */
    Real *after[MAX_ATTENTION_STATES]; /* output: the recurrent states after these positions */
    const int32_t *before, *counts;    /* softmax, on the host: positions before x and after, [B] */
    int32_t *lengths; /* softmax: a buffer, [B H]: attend to the cache; NULL: to x alone */
} AttentionCache;

struct TransformerState {
    Device *device;
    Transformer transformer;
    int64_t B, H, D, F;   /* sequences; heads; elements per head; rows of a recurrent state */
    int64_t width, inner; /* H D; the width of the feed-forward network */
    int64_t max_length;
    bool softmax; /* some layer's attention is softmax attention */
    Precision precision;
    Block *memory;                   /* data, out, counts, positions */
    Tensor data;                     /* Real or bf16: the states of all layers, see state_tensors */
    int64_t recurrent;               /* elements of data before the first KV cache */
    LayerState layer[NN_MAX_LAYERS]; /* in data */
    EngineAttention engine[NN_MAX_LAYERS]; /* if an engine computes the steps */
    Tensor out, positions;                 /* returned by the functions; see set_addresses */
    int32_t *device_counts;                /* [B], in memory: positions processed per sequence */
    int32_t *counts; /* host [B], a copy of device_counts; buffers for state_write_counts, [B], and
                      * for cached_lengths, [B H] */
    bool recorded;   /* a recorded step changes device_counts: replays may have done so since */
    Tape *tape;      /* of steps on operations; NULL if an engine computes them */
    Block *weights;  /* weights as the engine stores them, or NULL */
};

/* The tensors of all layers in the order in which data holds them, recurrent states first; returns
 * their number. */
enum { MAX_STATE_TENSORS = (MAX_ATTENTION_STATES + 2) * NN_MAX_LAYERS };
typedef struct StateTensor {
    Tensor *tensor;
    const char *name;
    int layer, state; /* which of the layer's recurrent states */
    bool recurrent;
    int64_t offset; /* in data, in elements */
} StateTensor;
int state_tensors(const TransformerState *state, StateTensor list[MAX_STATE_TENSORS]);

/* Allocates the weights; raises, as function, unless they can be read. */
void state_check_weights(const char *function, const Transformer *transformer);

/* Positions per sequence, [B] on the host, copied from the device if replays may have changed them.
 * NULL while a step is being recorded, because every replay finds other counts. */
const int32_t *state_counts(TransformerState *state);

/* Sets the counts from counts [B] on the host, which it overwrites. */
void state_write_counts(TransformerState *state, int32_t *counts);

/* The parallel form of x [B, N, width] after the state's positions; then the state is the one after
 * x. It changes last, so an error changes nothing: new recurrent states go to a buffer, keys and
 * values to the KV cache, where they do not count yet. */
typedef struct ParallelForm {
    Tensor *x, *lengths;     /* lengths: as in nn_transformer_prefill */
    int32_t *cached_lengths; /* for N = 1: softmax attention attends to the cache, and this is a
                              * buffer, [B H]; or NULL */
    int32_t *counts;         /* [B]: positions per sequence after x; overwritten */
} ParallelForm;
Tensor *state_advance(Tape *tape, TransformerState *state, ParallelForm form);

/* The context of a layer's positions that continue from its cache. */
AttentionContext cache_context(AttentionOptions options, const AttentionCache *cache);

#endif
