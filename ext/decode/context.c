/* Attention that continues from a decode state: the recurrent state, or the KV cache. */
#include "ext/decode/state.h"

static Tensor *cached_state(Tape *tape, const AttentionContext *context, int state,
                            StateEffect *effect, const void *operands)
{
    const AttentionCache *cache = context->own;
    (void)tape, (void)effect, (void)operands;
    return (Tensor *)&cache->state->states[state];
}

static void save_state(const AttentionContext *context, int state, const Tensor *after)
{
    const AttentionCache *cache = context->own;
    device_copy(after->device, cache->after[state], after->data, tensor_bytes(after));
}

/* Stores the keys and values of a sequence's positions first <= n < last, rows of heads [3 H, N, D]
 * from the sequence's position `before` on, in slots in a row. */
static void copy_to_cache(const LayerState *layer, const Tensor *heads, int64_t b, int64_t before,
                          int64_t first, int64_t last)
{
    const Tensor *const caches[] = { &layer->keys, &layer->values };
    const int64_t *size = layer->keys.shape.size; /* [B, H, slots, D] */
    const int64_t H = size[1], slots = size[2], D = size[3], N = heads->shape.size[2];
    for (int i = 0; i < 2; i++) {
        Real *dst = tensor_at(caches[i], (b * H * slots + cache_slot(layer, first)) * D);
        const Real *src = tensor_at(heads, ((3 * b + 1 + i) * H * N + first - before) * D);
        kernels_of(heads)->copy_rows((Gradient){ dst, false }, slots * D, src, N * D, H,
                                     (last - first) * D);
    }
}

/* Appends keys and values to the cache. If they are more than a ring buffer holds, only the sinks
 * and the last positions are stored: no later one attends to the others. Positions of x after
 * counts are padding. */
static void append_to_cache(Tape *tape, Tensor *packed, const AttentionCache *cache)
{
    const LayerState *layer = cache->state;
    const int64_t B = layer->keys.shape.size[0], slots = layer->keys.shape.size[2];
    Tensor *heads = op_transpose(tape, packed, 1, 2); /* [B, 3 H, N, D] */
    if (heads->type != layer->keys.type) {
        Tensor *converted = tape_tensor_of(tape, layer->keys.type, heads->shape);
        op_convert(heads->device, (Gradient){ converted->data, false }, heads->data,
                   converted->type == TENSOR_BF16, tensor_count(heads));
        heads = converted;
    }
    for (int64_t b = 0; b < B; b++) {
        const int64_t before = cache->before[b], end = cache->counts[b];
        for (int64_t n = before, last; n < end; n = last) {
            if (n >= layer->sinks && n < end - (slots - layer->sinks))
                n = end - (slots - layer->sinks);
            const int64_t bound =
                n < layer->sinks ? layer->sinks : n + slots - cache_slot(layer, n);
            last = bound < end ? bound : end;
            copy_to_cache(layer, heads, b, before, n, last);
        }
    }
}

/* int32 [B times]: the slots of each sequence that have keys, `times` in a row */
static Tensor *slots_in_use(Tape *tape, const AttentionCache *cache, int64_t times)
{
    const int64_t B = cache->state->keys.shape.size[0];
    const int32_t slots = (int32_t)cache->state->keys.shape.size[2];
    for (int64_t i = 0; i < B * times; i++) {
        const int32_t count = cache->counts[i / times];
        cache->lengths[i] = count < slots ? count : slots;
    }
    return tape_input_i32(tape, cache->lengths, shape(B * times));
}

/* Each head of a sequence as a sequence of one head, whose keys the cache has in a row. */
static Tensor *attend_to_slots(Tape *tape, Tensor *packed, const AttentionCache *cache)
{
    const int64_t *size = cache->state->keys.shape.size; /* [B, H, slots, D] */
    const int64_t B = size[0], H = size[1], D = size[3];
    const Shape rows = shape(B * H, size[2], 1, D);
    Tensor *query = op_slice(tape, packed, 2, 0, H); /* [B, 1, H, D] */
    Tensor *out = op_softmax_attention(
        tape, op_reshape(tape, query, shape(B * H, 1, 1, D)),
        op_reshape(tape, (Tensor *)&cache->state->keys, rows),
        op_reshape(tape, (Tensor *)&cache->state->values, rows),
        (SoftmaxAttentionOptions){ .key_lengths = slots_in_use(tape, cache, H) });
    return op_reshape(tape, out, query->shape);
}

/* The heads' logits differ, so sequences keep their heads: [B, slots, H, D] is a copy. */
static Tensor *attend_to_copies(Tape *tape, Tensor *packed, Tensor *sink_logits,
                                const AttentionCache *cache)
{
    const int64_t H = cache->state->keys.shape.size[1];
    return op_softmax_attention(
        tape, op_slice(tape, packed, 2, 0, H),
        op_transpose(tape, (Tensor *)&cache->state->keys, 1, 2),
        op_transpose(tape, (Tensor *)&cache->state->values, 1, 2),
        (SoftmaxAttentionOptions){ .key_lengths = slots_in_use(tape, cache, 1),
                                   .sink_logits = sink_logits });
}

static Tensor *attend_with_cache(Tape *tape, const AttentionContext *context, Tensor *packed,
                                 SoftmaxAttentionOptions options)
{
    const AttentionCache *cache = context->own;
    append_to_cache(tape, packed, cache);
    if (!cache->lengths)
        return op_causal_softmax_attention(tape, packed, NULL, NULL, options);
    return options.sink_logits ? attend_to_copies(tape, packed, options.sink_logits, cache)
                               : attend_to_slots(tape, packed, cache);
}

AttentionContext cache_context(AttentionOptions options, const AttentionCache *cache)
{
    return (AttentionContext){ .options = options,
                               .state_before = cached_state,
                               .state_after = save_state,
                               .attend = attend_with_cache,
                               .own = cache };
}
