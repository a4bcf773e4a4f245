/* Attention that continues from a decode state: the recurrent state, or the KV cache. */
#include "nn/decode/state.h"
#include "ops/kernels.h"
#include "ops/shared/internal.h"

static Tensor *cached_state(Tape *tape, const AttentionContext *context, StateSlot slot,
                            StateEffect *effect, const void *operands)
{
    const AttentionCache *cache = context->own;
    const LayerState *state = cache->state;
    (void)tape, (void)effect, (void)operands;
    return (Tensor *)(slot == STATE_ATTENTION ? &state->sums : &state->convolution);
}

static void save_state(const AttentionContext *context, StateSlot slot, const Tensor *after)
{
    const AttentionCache *cache = context->own;
    Real *to = slot == STATE_ATTENTION ? cache->sums_after : cache->convolution_after;
    if (to)
        device_copy(after->device, to, after->data, tensor_bytes(after));
}

/* Appends keys and values to the cache. N may exceed max_length when lengths end every sequence
 * before it: the rest is padding. */
static void append_to_cache(Tape *tape, Tensor *packed, const AttentionCache *cache)
{
    const Tensor *const caches[] = { &cache->state->keys, &cache->state->values };
    const Shape to = caches[0]->shape; /* [B, H, max_length, D] */
    const int64_t H = to.size[1], max_length = to.size[2], D = to.size[3];
    const int64_t N = packed->shape.size[1], count = N < max_length ? N : max_length;
    Tensor *heads = op_transpose(tape, packed, 1, 2); /* [B, 3 H, N, D] */
    if (heads->type != caches[0]->type) {
        Tensor *converted = tape_tensor_of(tape, caches[0]->type, heads->shape);
        op_convert(heads->device, (Gradient){ converted->data, false }, heads->data,
                   converted->type == TENSOR_BF16, tensor_count(heads));
        heads = converted;
    }
    for (int64_t b = 0; b < to.size[0]; b++)
        for (int i = 0; i < 2; i++) {
            Real *dst = tensor_at(caches[i], (b * H * max_length + cache->counts[b]) * D);
            const Real *src = tensor_at(heads, (3 * b + 1 + i) * H * N * D);
            kernels_of(heads)->copy_rows((Gradient){ dst, false }, max_length * D, src, N * D, H,
                                         count * D);
        }
}

static Tensor *attend_with_cache(Tape *tape, const AttentionContext *context,
                                 const Attention *attention, Tensor *packed,
                                 SoftmaxAttentionOptions options)
{
    const AttentionCache *cache = context->own;
    append_to_cache(tape, packed, cache);
    if (!cache->lengths)
        return op_causal_softmax_attention(tape, packed, NULL, NULL, options);
    /* Each head of a sequence as a sequence of one head, whose keys the cache has in a row. */
    const int64_t B = packed->shape.size[0], H = attention->heads, D = attention->head_dim;
    const Shape rows = shape(B * H, cache->state->keys.shape.size[2], 1, D);
    Tensor *query = op_slice(tape, packed, 2, 0, H); /* [B, 1, H, D] */
    Tensor *out = op_softmax_attention(tape, op_reshape(tape, query, shape(B * H, 1, 1, D)),
                                       op_reshape(tape, (Tensor *)&cache->state->keys, rows),
                                       op_reshape(tape, (Tensor *)&cache->state->values, rows),
                                       (SoftmaxAttentionOptions){ .key_lengths = cache->lengths });
    return op_reshape(tape, out, query->shape);
}

AttentionContext cache_context(AttentionOptions options, const AttentionCache *cache)
{
    return (AttentionContext){ .options = options,
                               .state_before = cached_state,
                               .state_after = save_state,
                               .attend = attend_with_cache,
                               .own = cache };
}
