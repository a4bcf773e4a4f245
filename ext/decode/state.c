/* The generation state: per layer, sequence and head the recurrent state S and z of linear
 * attention or the KV cache of softmax attention. One block of device memory holds these, then the
 * result of a step, then the number of positions per sequence. */
#include "ext/decode/kernels.h"

#include <stdlib.h>

/* --------------------------------------------------------------------------------------- checks */
void state_check_weights(const char *function, const Transformer *transformer)
{
    const char *error = tensor_unreadable(transformer->layer[0].norm1.weight, TENSOR_REAL);
    if (error)
        error_raise("%s: the weights %s", function, error);
}

static void check_attention(const Transformer *transformer)
{
    for (int64_t i = 0; i < transformer->layers; i++) {
        const AttentionKind *kind = transformer->layer[i].attention.kind;
        if (!kind->states && !kind->has_cache && kind->decays)
            error_raise("nn_transformer_state: layer %lld is softmax attention with a decay, which "
                        "has no KV cache",
                        (long long)i);
        if (!kind->states && !kind->has_cache)
            error_raise("nn_transformer_state: the transformer's attention is %s, expected causal "
                        "linear, gated linear, causal softmax or the delta rule",
                        kind->name);
    }
}

/* What an engine computes of this attention: causal linear or causal softmax attention, with a
 * decay alone; false: not by an engine. */
static bool engine_attention(const Attention *attention, EngineAttention *engine)
{
    const AttentionKind *kind = attention->kind;
    *engine = (EngineAttention){ .features = FEATURE_MAP_IDENTITY };
    const Gates *gates = nn_attention_gates(attention);
    if (gates) {
        if (gates->convolution.weight || gates->gate.weight || gates->norm.weight)
            return false;
        engine->decay_constant = gates->decay_constant;
        engine->decay = gates->decay;
        kind = kind->inner;
    }
    const LayerFeatures *map = nn_attention_features(attention);
    if (map && map->features == FEATURES_FOURIER)
        return false;
    if (map && kind->inner) {
        engine->features = (int)map->features;
        engine->projection = map->projection;
        kind = kind->inner;
    }
    const CausalLinearConfig *linear = nn_linear_options(kind);
    if (linear && engine->features == FEATURE_MAP_IDENTITY)
        engine->features = (int)linear->features;
    if (linear)
        return kind->states && !linear->unnormalized;
    return kind->has_cache && kind->window == 0 && !kind->of_layer && !kind->inner;
}

/* Whether a backend's engine computes the layers: all alike. The one that reads weights in 8 bits
 * also has linear attention's decay. */
static bool has_engine(const DecodeKernels *kernels, const Transformer *transformer)
{
    EngineAttention first, engine;
    bool alike = kernels->step != NULL;
    engine_attention(&transformer->layer[0].attention, &first);
    for (int64_t i = 0; i < transformer->layers && alike; i++) {
        const Attention *a = &transformer->layer[i].attention;
        alike = engine_attention(a, &engine) && engine.features == first.features &&
                (!engine.projection ||
                 shape_equal(engine.projection->shape, first.projection->shape)) &&
                a->kind->has_cache == transformer->layer[0].attention.kind->has_cache &&
                (!engine.decay_constant || kernels->store_weights);
    }
    return alike;
}

/* The engine that reads weights in 8 bits also reads weights and a KV cache in bf16. */
static void check_precision(Device *device, const Transformer *transformer, GenerationConfig config)
{
    static const char *const names[] = { "float32", "tf32", "bf16" };
    const Precision precision = config.precision;
    const DecodeKernels *kernels = decode_kernels(device);
    if ((unsigned)precision > PRECISION_BF16)
        error_raise("nn_transformer_state: there is no precision %d", (int)precision);
    if (precision != PRECISION_FLOAT32 && sizeof(Real) == sizeof(double))
        error_raise("nn_transformer_state: %s is not available in a double-precision build",
                    names[precision]);
    if (precision == PRECISION_TF32 && !device_is_cuda(device))
        error_raise("nn_transformer_state: tf32 needs a CUDA device, the transformer is on %s",
                    device_name(device));
    if ((precision == PRECISION_BF16 || config.int8_weights) && !kernels->store_weights)
        error_raise("nn_transformer_state: %s on the CPU only, the transformer is on %s",
                    config.int8_weights ? "int8_weights are" : "bf16 is", device_name(device));
    if ((precision != PRECISION_FLOAT32 || config.int8_weights) &&
        !has_engine(kernels, transformer))
        error_raise("nn_transformer_state: %s not available for layers that differ, or have a "
                    "window, a learned sink, gates other than a decay, or rotary positions",
                    config.int8_weights           ? "int8_weights are"
                    : precision == PRECISION_TF32 ? "tf32 is"
                                                  : "bf16 is");
}

/* ---------------------------------------------------------------------------------------- sizes */
static int64_t aligned(int64_t count)
{
    enum { ELEMENTS = 32 }; /* of bf16 per cache line */
    return (count + ELEMENTS - 1) / ELEMENTS * ELEMENTS;
}

static Tensor state_tensor(Device *device, TensorType type, Shape shape)
{
    return (Tensor){ .device = device, .type = type, .shape = shape };
}

static AttentionState state_of(const Attention *attention, int state, int64_t B)
{
    const int64_t D = attention->head_dim;
    return attention->kind->state(attention->kind, state,
                                  (AttentionSizes){ B, attention->heads, D, D });
}

/* Of the KV cache: see cache_slot. */
static int64_t cache_slots(const AttentionKind *kind, int64_t max_length)
{
    const bool all =
        kind->window == 0 || kind->sinks >= max_length || kind->window > max_length - kind->sinks;
    return all ? max_length : kind->sinks + kind->window;
}

/* A layer's state without memory. */
static LayerState describe_layer(Device *device, const Attention *attention,
                                 GenerationConfig config)
{
    const int64_t B = config.sequences, H = attention->heads, D = attention->head_dim;
    const AttentionKind *kind = attention->kind;
    LayerState layer = { .keys = { 0 } };
    if (kind->has_cache) {
        const bool bf16 = config.precision == PRECISION_BF16; /* sums over positions stay Real */
        layer.keys = state_tensor(device, bf16 ? TENSOR_BF16 : TENSOR_REAL,
                                  shape(B, H, cache_slots(kind, config.max_length), D));
        layer.values = layer.keys;
        layer.sinks = kind->window ? kind->sinks : 0;
    }
    for (int state = 0; state < kind->states; state++)
        layer.states[state] =
            state_tensor(device, TENSOR_REAL, state_of(attention, state, B).shape);
    return layer;
}

int state_tensors(const TransformerState *state, StateTensor list[MAX_STATE_TENSORS])
{
    static const char *const cached[] = { "keys", "values" };
    int count = 0;
    int64_t offset = 0;
    for (int part = 0; part < MAX_ATTENTION_STATES + 2; part++)
        for (int i = 0; i < state->transformer.layers; i++) {
            const LayerState *layer = &state->layer[i];
            const Tensor *const caches[] = { &layer->keys, &layer->values };
            const int cache = part - MAX_ATTENTION_STATES;
            const Tensor *tensor = cache < 0 ? &layer->states[part] : caches[cache];
            if (!tensor->device)
                continue;
            const char *name =
                cache < 0 ? state_of(&state->transformer.layer[i].attention, part, state->B).name
                          : cached[cache];
            list[count++] = (StateTensor){ (Tensor *)tensor, name, i, part, cache < 0, offset };
            offset += aligned(tensor_count(tensor));
        }
    return count;
}

/* A state without memory. */
static TransformerState describe(Device *device, const Transformer *transformer,
                                 GenerationConfig config)
{
    const Attention *attention = &transformer->layer[0].attention;
    const int64_t H = attention->heads, D = attention->head_dim;
    TransformerState state = {
        .device = device,
        .transformer = *transformer,
        .B = config.sequences,
        .H = H,
        .D = D,
        .F = D,
        .width = H * D,
        .inner = transformer->layer[0].ff1.weight->shape.size[0],
        .max_length = config.max_length,
        .precision = config.precision,
        .data = { .device = device },
    };
    StateTensor list[MAX_STATE_TENSORS];
    int64_t elements = 0;
    for (int64_t i = 0; i < transformer->layers; i++) {
        state.layer[i] = describe_layer(device, &transformer->layer[i].attention, config);
        state.softmax = state.softmax || state.layer[i].keys.device;
        engine_attention(&transformer->layer[i].attention, &state.engine[i]);
    }
    if (attention->kind->states)
        state.F = state.layer[0].states[0].shape.size[2];
    const int count = state_tensors(&state, list);
    for (int i = 0; i < count; i++) {
        elements = list[i].offset + aligned(tensor_count(list[i].tensor));
        if (list[i].recurrent)
            state.recurrent = elements;
        state.data.type = list[i].tensor->type; /* one type: bf16 needs an engine */
    }
    state.data.shape = shape(elements);
    return state;
}

/* --------------------------------------------------------------------------------------- memory */

/* Divides memory into data, out, counts and positions. positions: min(count, max_length - 1). */
static void set_addresses(TransformerState *state)
{
    StateTensor list[MAX_STATE_TENSORS];
    state->data.data = state->memory->data;
    for (int i = state_tensors(state, list) - 1; i >= 0; i--)
        list[i].tensor->data = tensor_at(&state->data, list[i].offset);
    state->out = (Tensor){ .device = state->device,
                           .shape = shape(state->B, state->width),
                           .data = tensor_at(&state->data, tensor_count(&state->data)) };
    state->device_counts = (int32_t *)(state->out.data + aligned(state->B * state->width));
    state->positions =
        (Tensor){ .device = state->device,
                  .type = TENSOR_INT32,
                  .shape = shape(state->B),
                  .integers = state->device_counts + aligned(state->B),
                  .bounds = { .known = true, .max = (int32_t)state->max_length - 1 } };
}

/* Returns false when memory is exhausted; *bytes is the size requested last. */
static bool allocate_memory(TransformerState *state, size_t *bytes)
{
    *bytes = (size_t)((2 + state->H) * state->B) * sizeof *state->counts;
    state->counts = memory_allocate(*bytes);
    if (!state->counts)
        return false;
    memset(state->counts, 0, *bytes);
    *bytes = tensor_bytes(&state->data) + (size_t)aligned(state->B * state->width) * sizeof(Real) +
             2 * (size_t)aligned(state->B) * sizeof(int32_t);
    state->memory = device_allocate(state->device, *bytes);
    if (!state->memory)
        return false;
    device_zero(state->device, state->memory->data, *bytes);
    set_addresses(state);
    return true;
}

static void free_memory(TransformerState *state)
{
    device_free(state->device, state->memory);
    device_free(state->device, state->weights);
    tape_free(state->tape);
    free(state->counts);
}

/* --------------------------------------------------------------------------------- construction */
TransformerState *nn_transformer_state(const Transformer *transformer, GenerationConfig config)
{
    error_need("nn_transformer_state", "the transformer", transformer);
    if (transformer->layers < 1)
        error_raise("nn_transformer_state: the transformer has no layers; see nn_transformer");
    Device *device = transformer->layer[0].norm1.weight->device;
    check_attention(transformer);
    const int64_t max = INT32_MAX - 1;
    shape_need_size("nn_transformer_state", "sequences", &config.sequences, 1, max);
    shape_need_size("nn_transformer_state", "max_length", &config.max_length, 1024, max);
    check_precision(device, transformer, config);
    if (device_is_capturing(device))
        error_raise("nn_transformer_state: this step is replayed; create the state before it");
    state_check_weights("nn_transformer_state", transformer);
    TransformerState created = describe(device, transformer, config);
    const DecodeKernels *kernels = decode_kernels(device);
    if (!has_engine(kernels, transformer))
        created.tape = tape_new(device);
    else if (kernels->store_weights)
        kernels->store_weights(&created, config.int8_weights);
    size_t bytes = sizeof created;
    TransformerState *state = memory_allocate(bytes);
    if (!state || !allocate_memory(&created, &bytes)) {
        free_memory(&created);
        free(state);
        error_raise("nn_transformer_state: %s", device_exhausted(device, bytes).text);
    }
    *state = created;
    return state;
}

void nn_transformer_state_free(TransformerState *state)
{
    if (state)
        free_memory(state);
    free(state);
}

Tensor *nn_transformer_state_positions(const TransformerState *state)
{
    return (Tensor *)&state->positions;
}

/* --------------------------------------------------------------------------------------- counts */
const int32_t *state_counts(TransformerState *state)
{
    if (device_is_capturing(state->device))
        return NULL;
    if (state->recorded)
        device_copy_out(state->device, state->counts, state->device_counts,
                        (size_t)state->B * sizeof *state->counts);
    return state->counts;
}

void state_write_counts(TransformerState *state, int32_t *counts)
{
    const size_t bytes = (size_t)state->B * sizeof *counts;
    memcpy(state->counts, counts, bytes);
    device_copy_in(state->device, state->device_counts, counts, bytes);
    for (int64_t b = 0; b < state->B; b++)
        if (counts[b] == state->max_length)
            counts[b]--;
    device_copy_in(state->device, state->positions.integers, counts, bytes);
}

/* ------------------------------------------------------------------------- resetting, branching */
static void check_sequence(const char *function, const TransformerState *state, int64_t sequence)
{
    if (sequence < 0 || sequence >= state->B)
        error_raise("%s: there is no sequence %lld, the state has %lld", function,
                    (long long)sequence, (long long)state->B);
}

/* A KV cache is read up to the count, so zeroing the count resets it. */
void nn_transformer_state_reset(TransformerState *state, int64_t sequence)
{
    error_need("nn_transformer_state_reset", "the state", state);
    const bool all = sequence == NN_ALL_SEQUENCES;
    if (!all)
        check_sequence("nn_transformer_state_reset", state, sequence);
    const int64_t first = all ? 0 : sequence, count = all ? state->B : 1;
    const size_t bytes = (size_t)count * sizeof(int32_t);
    StateTensor list[MAX_STATE_TENSORS];
    const int tensors = state_tensors(state, list);
    for (int i = 0; i < tensors && list[i].recurrent; i++) {
        const int64_t each = tensor_count(list[i].tensor) / state->B;
        device_zero(state->device, list[i].tensor->data + first * each,
                    (size_t)(count * each) * sizeof(Real));
    }
    device_zero(state->device, state->device_counts + first, bytes);
    device_zero(state->device, state->positions.integers + first, bytes);
    if (device_is_capturing(state->device))
        state->recorded = true;
    else
        memset(state->counts + first, 0, bytes);
}

static void check_copy(const TransformerState *to, const TransformerState *from)
{
    if (to->transformer.layer[0].norm1.weight != from->transformer.layer[0].norm1.weight ||
        to->transformer.layers != from->transformer.layers)
        error_raise("nn_transformer_state_copy: the states belong to different transformers");
    if (device_is_capturing(to->device) && to->max_length != from->max_length)
        error_raise("nn_transformer_state_copy: max_length is %lld in to and %lld in from, a "
                    "replayed step needs equal ones",
                    (long long)to->max_length, (long long)from->max_length);
}

/* Copies the keys, or values, of a sequence with this number of positions; max_length and, on the
 * CPU, dtype may differ. The slots are the same ones: a cache with fewer slots than positions has
 * sinks + window of them in both states. */
static void copy_positions(const Tensor *to, int64_t sequence, const Tensor *from,
                           int64_t from_sequence, int64_t positions)
{
    const int64_t H = to->shape.size[1], D = to->shape.size[3], slots = from->shape.size[2];
    const int64_t n = (positions < slots ? positions : slots) * D;
    for (int64_t h = 0; n > 0 && h < H; h++) {
        Real *dst = tensor_at(to, (sequence * H + h) * to->shape.size[2] * D);
        const Real *src = tensor_at(from, (from_sequence * H + h) * from->shape.size[2] * D);
        if (to->type == from->type)
            device_copy(to->device, dst, src, (size_t)n * tensor_element_bytes(to));
        else
            op_convert(to->device, (Gradient){ dst, false }, src, to->type == TENSOR_BF16, n);
    }
}

/* During recording the host cannot read the count; both states have the same max_length then. */
static void copy_count(TransformerState *to, int64_t sequence, const TransformerState *from,
                       int64_t from_sequence, const int32_t *counts)
{
    if (counts) {
        int32_t *after = to->counts + to->B;
        memcpy(after, state_counts(to), (size_t)to->B * sizeof *after);
        after[sequence] = counts[from_sequence];
        state_write_counts(to, after);
        return;
    }
    device_copy(to->device, to->device_counts + sequence, from->device_counts + from_sequence,
                sizeof(int32_t));
    device_copy(to->device, to->positions.integers + sequence,
                from->positions.integers + from_sequence, sizeof(int32_t));
    to->recorded = true;
}

void nn_transformer_state_copy(TransformerState *to, int64_t sequence, const TransformerState *from,
                               int64_t from_sequence)
{
    check_sequence("nn_transformer_state_copy", to, sequence);
    check_sequence("nn_transformer_state_copy", from, from_sequence);
    check_copy(to, from);
    if (to == from && sequence == from_sequence)
        return;
    const int32_t *counts = state_counts((TransformerState *)from);
    const int64_t positions = counts ? counts[from_sequence] : from->max_length;
    if (positions > to->max_length)
        error_raise("nn_transformer_state_copy: sequence %lld has %lld positions, max_length of "
                    "the destination is %lld",
                    (long long)from_sequence, (long long)positions, (long long)to->max_length);
    StateTensor dst[MAX_STATE_TENSORS], src[MAX_STATE_TENSORS];
    const int tensors = state_tensors(to, dst);
    state_tensors(from, src);
    for (int i = 0; i < tensors; i++) {
        const int64_t each = tensor_count(dst[i].tensor) / to->B;
        if (dst[i].recurrent)
            device_copy(to->device, dst[i].tensor->data + sequence * each,
                        src[i].tensor->data + from_sequence * each, (size_t)each * sizeof(Real));
        else
            copy_positions(dst[i].tensor, sequence, src[i].tensor, from_sequence, positions);
    }
    copy_count(to, sequence, from, from_sequence, counts);
}
