/* sample in bf16. */
#include "ops/cpu/shared/bf16.h"
#include "ops/kernels.h"

/* The sampler of the rows from `first` on */
static Sampler sampler_from(Sampler sampler, int64_t first)
{
    sampler.random.counter += (uint64_t)first;
    return sampler;
}

void sample_bf16(int32_t *out, const Real *logits, Sampler sampler, int64_t R, int64_t C)
{
    BF16_BLOCKS(block, R, C, 1) {
        const Real *rows = bf16_read(&block, logits, C);
        sample_plain(out + block.first, rows, sampler_from(sampler, block.first), block.rows, C);
    }
}
