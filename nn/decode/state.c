/* The generation state: per layer, sequence and head the recurrent state S and z of linear
 * attention or the KV cache of softmax attention. One block of device memory holds these, then the
 * result of a step, then the number of positions per sequence. */
#include "nn/decode/state.h"
#include "ops/kernels.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------- sizes */
static void check_attention(const Attention *attention)
{
    static const char *const names[] = {
        [ATTENTION_LINEAR] = "ATTENTION_LINEAR",
        [ATTENTION_SOFTMAX] = "ATTENTION_SOFTMAX",
        [ATTENTION_CAUSAL_LSH] = "ATTENTION_CAUSAL_LSH",
        [ATTENTION_LSH] = "ATTENTION_LSH",
    };
    if (attention->kind != ATTENTION_CAUSAL_LINEAR && attention->kind != ATTENTION_CAUSAL_SOFTMAX)
        error_raise("nn_transformer_state: the transformer's attention is %s, expected "
                    "ATTENTION_CAUSAL_LINEAR or ATTENTION_CAUSAL_SOFTMAX",
                    names[attention->kind]);
}

static int64_t config_size(const char *field, int64_t value, int64_t default_value)
{
    if (value < 0 || value >= INT32_MAX)
        error_raise("nn_transformer_state: %s is %lld, expected 1 to %d, or 0 for the default",
                    field, (long long)value, INT32_MAX - 1);
    return value ? value : default_value;
}

/* The engine that reads weights in 8 bits also reads weights and a KV cache in bf16. */
static void check_precision(Device *device, GenerationConfig config)
{
    static const char *const names[] = { "float32", "tf32", "bf16" };
    const Precision precision = config.precision;
    if ((unsigned)precision > PRECISION_BF16)
        error_raise("nn_transformer_state: there is no precision %d", (int)precision);
    if (precision != PRECISION_FLOAT32 && sizeof(Real) == sizeof(double))
        error_raise("nn_transformer_state: %s is not available in a double-precision build",
                    names[precision]);
    if (precision == PRECISION_TF32 && !device_is_cuda(device))
        error_raise("nn_transformer_state: tf32 needs a CUDA device, the transformer is on %s",
                    device_name(device));
    if ((precision == PRECISION_BF16 || config.int8_weights) &&
        !kernels_on(device, TENSOR_REAL)->quantize_weight)
        error_raise("nn_transformer_state: %s on the CPU only, the transformer is on %s",
                    config.int8_weights ? "int8_weights are" : "bf16 is", device_name(device));
}

static int64_t feature_count(const Attention *attention)
{
    const int64_t D = attention->head_dim;
    if (attention->features == FEATURES_POLYNOMIAL)
        return 1 + D + D * (D + 1) / 2;
    return attention->projection ? attention->projection->shape.size[0] : D;
}

/* -------------------------------------------------------------------------------------- weights */
/* With bf16, a product reads the bf16 copy of its Params, which follows the weight. */
static StepLinear step_linear(const Linear *linear, bool bf16)
{
    Tensor *weight = linear->weight;
    StepLinear step = { .weight = weight->data, .bias = linear->bias->data };
    if (!bf16)
        return step;
    if (!weight->bf16_copy)
        error_raise(
            "nn_transformer_state: bf16 needs weights of a Params, this one %s and belongs to none",
            tensor_text(weight).text);
    step.type = WEIGHT_BF16;
    step.weight = weight->bf16_copy(weight, false);
    if (!step.weight)
        error_raise("nn_transformer_state: memory is exhausted: the bf16 copy of the weights could "
                    "not be allocated");
    return step;
}

static StepNorm step_norm(const LayerNorm *norm)
{
    return (StepNorm){ norm->weight->data, norm->bias->data, (Real)norm->eps };
}

/* With post-norm, a layer's last norm is that of the next layer's input. */
static void set_layers(TransformerStep *step, const Transformer *transformer, bool bf16)
{
    StepNorm before = { NULL, NULL, 0 };
    for (int64_t i = 0; i < step->layers; i++) {
        const TransformerLayer *layer = &transformer->layer[i];
        const Tensor *projection = layer->attention.projection;
        const StepNorm norm1 = step_norm(&layer->norm1), norm2 = step_norm(&layer->norm2);
        step->layer[i] = (StepLayer){ .input = step_linear(&layer->attention.input, bf16),
                                      .output = step_linear(&layer->attention.output, bf16),
                                      .ff1 = step_linear(&layer->ff1, bf16),
                                      .ff2 = step_linear(&layer->ff2, bf16),
                                      .attention_norm = step->pre_norm ? norm1 : before,
                                      .ff_norm = step->pre_norm ? norm2 : norm1,
                                      .projection = projection ? projection->data : NULL };
        before = norm2;
    }
    if (!step->pre_norm)
        step->last_norm = before;
    if (transformer->has_norm)
        step->norm = step_norm(&transformer->norm);
}

/* Sizes and addresses of the weights, which are allocated; the state is not allocated yet. */
static TransformerStep step_of(const Transformer *transformer, GenerationConfig config)
{
    const TransformerLayer *first = &transformer->layer[0];
    const Attention *attention = &first->attention;
    TransformerStep step = {
        .B = config.sequences,
        .H = attention->heads,
        .D = attention->head_dim,
        .F = feature_count(attention),
        .width = attention->heads * attention->head_dim,
        .inner = first->ff1.weight->shape.size[0],
        .layers = transformer->layers,
        .max_length = config.max_length,
        .softmax = attention->kind == ATTENTION_CAUSAL_SOFTMAX,
        .pre_norm = first->pre_norm,
        .activation = first->activation,
        .features = attention->features,
        .eps = (Real)ATTENTION_EPS,
        .precision = config.precision,
    };
    if (step.softmax && config.precision == PRECISION_BF16)
        step.cache_type = TENSOR_BF16; /* S and z are sums over positions and stay Real */
    set_layers(&step, transformer, config.precision == PRECISION_BF16 && !config.int8_weights);
    return step;
}

/* --------------------------------------------------------------------------------------- memory */

/* Elements per sequence in a layer's sums, or in its keys and in its values each. */
static int64_t sequence_count(const TransformerStep *step)
{
    return step->softmax ? step->H * step->max_length * step->D : step->H * step->F * (step->D + 1);
}

static int64_t aligned(int64_t count)
{
    enum { LINE = 32 }; /* bf16 elements per cache line */
    return (count + LINE - 1) / LINE * LINE;
}

static size_t cache_bytes(TensorType type, int64_t count)
{
    return (size_t)count * (type == TENSOR_BF16 ? sizeof(uint16_t) : sizeof(Real));
}

/* The address of element i of a cache. */
static Real *cache_at(TensorType type, const Real *cache, int64_t i)
{
    return (Real *)((char *)cache + cache_bytes(type, i));
}

/* Divides memory into data, out, counts and positions. */
static void set_addresses(TransformerState *state)
{
    TransformerStep *step = &state->step;
    Real *next = state->data = state->memory->data;
    for (int64_t i = 0; i < step->layers; i++) {
        Real *values = cache_at((TensorType)step->cache_type, next, step->B * sequence_count(step));
        step->layer[i].state = step->softmax ? (LayerState){ .keys = next, .values = values }
                                             : (LayerState){ .sums = next };
        next = cache_at((TensorType)step->cache_type, next, state->layer_count);
    }
    step->counts = (int32_t *)(next + aligned(step->B * step->width));
    step->positions = step->counts + aligned(step->B);
    state->out =
        (Tensor){ .device = state->device, .shape = shape(step->B, step->width), .data = next };
    state->positions =
        (Tensor){ .device = state->device,
                  .type = TENSOR_INT32,
                  .shape = shape(step->B),
                  .integers = step->positions,
                  .bounds = { .known = true, .max = (int32_t)step->max_length - 1 } };
}

/* Copies the weights in 8 bits, and the copies then replace them: first the weights of all
 * layers, then the scales of their rows. Returns false when memory is exhausted; *bytes is the
 * size requested last. */
static bool quantize_weights(TransformerState *state, size_t *bytes)
{
    TransformerStep *step = &state->step;
    const int64_t width = step->width, inner = step->inner;
    const int64_t O[] = { 3 * width, width, inner, width }, I[] = { width, width, width, inner };
    const int64_t elements = step->layers * width * (4 * width + 2 * inner);
    const int64_t rows = step->layers * (5 * width + inner);
    *bytes = (size_t)aligned(elements) + (size_t)rows * sizeof(Real);
    state->weights = device_allocate(state->device, *bytes);
    if (!state->weights)
        return false;
    int8_t *next = state->weights->data;
    Real *scales = (Real *)(void *)(next + aligned(elements));
    for (StepLayer *layer = step->layer; layer < step->layer + step->layers; layer++) {
        StepLinear *linears[] = { &layer->input, &layer->output, &layer->ff1, &layer->ff2 };
        for (int j = 0; j < 4; next += O[j] * I[j], scales += O[j], j++) {
            kernels_on(state->device, TENSOR_REAL)
                ->quantize_weight(next, scales, linears[j]->weight, O[j], I[j]);
            *linears[j] =
                (StepLinear){ (Real *)(void *)next, linears[j]->bias, WEIGHT_INT8, scales };
        }
    }
    return true;
}

size_t state_bytes(const TransformerState *state)
{
    return cache_bytes((TensorType)state->step.cache_type, state->data_count);
}

/* The same for everything that a new state owns. */
static bool allocate_memory(TransformerState *state, bool int8_weights, size_t *bytes)
{
    const TransformerStep *step = &state->step;
    *bytes = 2 * (size_t)step->B * sizeof *state->counts;
    state->counts = memory_allocate(*bytes);
    if (!state->counts)
        return false;
    *bytes = state_bytes(state) + (size_t)aligned(step->B * step->width) * sizeof(Real) +
             2 * (size_t)aligned(step->B) * sizeof(int32_t);
    state->memory = device_allocate(state->device, *bytes);
    if (!state->memory)
        return false;
    device_zero(state->device, state->memory->data, *bytes);
    memset(state->counts, 0, (size_t)step->B * sizeof *state->counts);
    set_addresses(state);
    return !int8_weights || quantize_weights(state, bytes);
}

/* --------------------------------------------------------------------------------- construction */
TransformerState *nn_transformer_state(const Transformer *transformer, GenerationConfig config)
{
    if (!transformer)
        error_raise("nn_transformer_state: the transformer is NULL");
    if (transformer->layers < 1)
        error_raise("nn_transformer_state: the transformer has no layers; see nn_transformer");
    Device *device = transformer->layer[0].norm1.weight->device;
    check_attention(&transformer->layer[0].attention);
    config.sequences = config_size("sequences", config.sequences, 1);
    config.max_length = config_size("max_length", config.max_length, 1024);
    check_precision(device, config);
    if (device_is_capturing(device))
        error_raise("nn_transformer_state: this step is replayed; create the state before it");
    const char *error = tensor_unreadable(transformer->layer[0].norm1.weight, TENSOR_REAL);
    if (error)
        error_raise("nn_transformer_state: the weights %s", error);
    const TransformerStep step = step_of(transformer, config);
    const int64_t one = shape_count(shape(step.B, sequence_count(&step), 1 + step.softmax));
    const int64_t all = shape_count(shape(step.layers, aligned(one)));
    size_t bytes = sizeof(TransformerState);
    const bool engine = kernels_on(device, TENSOR_REAL)->transformer_step != NULL;
    Tape *tape = engine ? NULL : tape_new(device);
    TransformerState *state = memory_allocate(bytes);
    if (state)
        *state = (TransformerState){ .device = device,
                                     .tape = tape,
                                     .transformer = *transformer,
                                     .step = step,
                                     .data_count = all,
                                     .layer_count = aligned(one) };
    if (!state || !allocate_memory(state, config.int8_weights, &bytes)) {
        if (!state)
            tape_free(tape);
        nn_transformer_state_free(state);
        error_raise("nn_transformer_state: %s", device_exhausted(device, bytes).text);
    }
    return state;
}

void nn_transformer_state_free(TransformerState *state)
{
    if (!state)
        return;
    device_free(state->device, state->memory);
    device_free(state->device, state->weights);
    tape_free(state->tape);
    free(state->counts);
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
        device_copy_out(state->device, state->counts, state->step.counts,
                        (size_t)state->step.B * sizeof *state->counts);
    return state->counts;
}

void state_write_counts(TransformerState *state, int32_t *counts)
{
    const TransformerStep *step = &state->step;
    const size_t bytes = (size_t)step->B * sizeof *counts;
    memcpy(state->counts, counts, bytes);
    device_copy_in(state->device, step->counts, counts, bytes);
    for (int64_t b = 0; b < step->B; b++)
        if (counts[b] == step->max_length)
            counts[b]--;
    device_copy_in(state->device, step->positions, counts, bytes);
}

/* ------------------------------------------------------------------------- resetting, branching */
static void check_sequence(const char *function, const TransformerState *state, int64_t sequence)
{
    if (sequence < 0 || sequence >= state->step.B)
        error_raise("%s: there is no sequence %lld, the state has %lld", function,
                    (long long)sequence, (long long)state->step.B);
}

/* A KV cache is read up to the count, so zeroing the count resets it. */
void nn_transformer_state_reset(TransformerState *state, int64_t sequence)
{
    const TransformerStep *step = &state->step;
    const bool all = sequence == NN_ALL_SEQUENCES;
    if (!all)
        check_sequence("nn_transformer_state_reset", state, sequence);
    const int64_t first = all ? 0 : sequence, count = all ? step->B : 1;
    const int64_t each = sequence_count(step);
    const size_t bytes = (size_t)count * sizeof(int32_t);
    for (int64_t i = 0; i < step->layers && !step->softmax; i++)
        device_zero(state->device, step->layer[i].state.sums + first * each,
                    (size_t)(count * each) * sizeof(Real));
    device_zero(state->device, step->counts + first, bytes);
    device_zero(state->device, step->positions + first, bytes);
    if (device_is_capturing(state->device))
        state->recorded = true;
    else
        memset(state->counts + first, 0, bytes);
}

static void check_copy(const TransformerState *to, const TransformerState *from)
{
    if (to->transformer.layer[0].norm1.weight != from->transformer.layer[0].norm1.weight ||
        to->step.layers != from->step.layers)
        error_raise("nn_transformer_state_copy: the states belong to different transformers");
    if (device_is_capturing(to->device) && to->step.max_length != from->step.max_length)
        error_raise(
            "nn_transformer_state_copy: max_length is %lld in to and %lld in from, a replayed "
            "step needs equal ones",
            (long long)to->step.max_length, (long long)from->step.max_length);
}

/* Copies the first `positions` keys, or values, of a sequence, [H, max_length, D] at an offset;
 * max_length and, on the CPU, the dtype may differ between the states. */
static void copy_positions(TransformerState *to, Real *dst, int64_t offset,
                           const TransformerState *from, const Real *src, int64_t from_offset,
                           int64_t positions)
{
    const int64_t D = to->step.D;
    const TensorType type = (TensorType)to->step.cache_type,
                     from_type = (TensorType)from->step.cache_type;
    for (int64_t h = 0; positions > 0 && h < to->step.H; h++) {
        Real *target = cache_at(type, dst, offset + h * to->step.max_length * D);
        const Real *source = cache_at(from_type, src, from_offset + h * from->step.max_length * D);
        if (type == from_type)
            device_copy(to->device, target, source, cache_bytes(type, positions * D));
        else
            kernels_on(to->device, TENSOR_REAL)
                ->cast((Gradient){ target, false }, source, type == TENSOR_BF16, positions * D);
    }
}

/* Copies one sequence's recurrent state or KV cache in one layer. */
static void copy_layer(TransformerState *to, int64_t sequence, const TransformerState *from,
                       int64_t from_sequence, int64_t layer, int64_t positions)
{
    const LayerState *dst = &to->step.layer[layer].state, *src = &from->step.layer[layer].state;
    const int64_t each = sequence_count(&to->step), offset = sequence * each;
    const int64_t from_offset = from_sequence * sequence_count(&from->step);
    if (to->step.softmax) {
        copy_positions(to, dst->keys, offset, from, src->keys, from_offset, positions);
        copy_positions(to, dst->values, offset, from, src->values, from_offset, positions);
    } else {
        device_copy(to->device, dst->sums + offset, src->sums + from_offset,
                    (size_t)each * sizeof(Real));
    }
}

/* During recording the host cannot read the count; both states have the same max_length then. */
static void copy_count(TransformerState *to, int64_t sequence, const TransformerState *from,
                       int64_t from_sequence, const int32_t *counts)
{
    if (counts) {
        int32_t *after = to->counts + to->step.B;
        memcpy(after, state_counts(to), (size_t)to->step.B * sizeof *after);
        after[sequence] = counts[from_sequence];
        state_write_counts(to, after);
        return;
    }
    device_copy(to->device, to->step.counts + sequence, from->step.counts + from_sequence,
                sizeof(int32_t));
    device_copy(to->device, to->step.positions + sequence, from->step.positions + from_sequence,
                sizeof(int32_t));
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
    const int64_t positions = counts ? counts[from_sequence] : from->step.max_length;
    if (positions > to->step.max_length)
        error_raise("nn_transformer_state_copy: sequence %lld has %lld positions, max_length of "
                    "the destination is %lld",
                    (long long)from_sequence, (long long)positions, (long long)to->step.max_length);
    for (int64_t i = 0; i < to->step.layers; i++)
        copy_layer(to, sequence, from, from_sequence, i, positions);
    copy_count(to, sequence, from, from_sequence, counts);
}
