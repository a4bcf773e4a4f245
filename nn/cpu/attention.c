/* A KV cache in float32 or bf16 from keys and values. */
#include "nn/internal.h"
#include "ops/cpu/shared/storage.h"
#include "ops/kernels.h"

void store_keys_values_cpu(const KeysValues *s)
{
    const AttentionCache *cache = s->cache;
    const int64_t H = s->H, D = s->D;
    if (cache->type == TENSOR_REAL) {
        store_keys_values_plain(s);
        return;
    }
    EACH_ROW(row, s->B * s->count * H, D) {
        const int64_t h = row % H, n = row / H % s->count, b = row / H / s->count;
        const int64_t to = ((b * H + h) * cache->max_length + n) * D;
        const Real *from = s->packed + ((b * s->N + n) * 3 * H + h) * D;
        Real *keys = elements_at(TENSOR_BF16, cache->keys, to);
        Real *values = elements_at(TENSOR_BF16, cache->values, to);
        convert_elements(TENSOR_BF16, keys, TENSOR_REAL, from + H * D, D);
        convert_elements(TENSOR_BF16, values, TENSOR_REAL, from + 2 * H * D, D);
    }
}
