/* How the work of linear attention is divided among the blocks of a GPU. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_PLAN_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_CHUNK_PLAN_H

#include <stdbool.h>
#include <stdint.h>

/* The chunks of all heads form one line, head after head, and every block processes the same number
 * of consecutive chunks. */
typedef struct ChunkPlan {
    int64_t per_block, blocks; /* chunks per block; blocks that have any */
    bool cuts_heads;           /* some head's chunks are in several blocks */
} ChunkPlan;

static inline int64_t ceiling_of_quotient(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline ChunkPlan chunk_plan_of(int64_t heads, int64_t chunks, int64_t per_block)
{
    const ChunkPlan plan = { per_block, ceiling_of_quotient(heads * chunks, per_block),
                             per_block % chunks != 0 };
    return plan;
}

/* The fraction of the last wave's slots for blocks that are occupied; resident: the blocks that a
 * GPU runs at once. */
static inline double last_wave(ChunkPlan plan, int64_t resident)
{
    return (double)((plan.blocks - 1) % resident + 1) / (double)resident;
}

/* The plan for heads of this number of chunks each. Every block is resident at once and has the
 * same number of chunks, but for the last: the GPU is at least 60 % full until the end, unless a
 * block has only 1 or 2 chunks.
 *
 * Whole heads need no sums of segments, which cost about a third of a scan. They are preferred
 * where a worse balance costs less. */
static inline ChunkPlan plan_chunks(int64_t heads, int64_t chunks, int64_t resident)
{
    const int64_t least = ceiling_of_quotient(heads * chunks, resident);
    const ChunkPlan balanced = chunk_plan_of(heads, chunks, least);
    const ChunkPlan whole =
        chunk_plan_of(heads, chunks, ceiling_of_quotient(least, chunks) * chunks);
    const bool balances =
        last_wave(whole, resident) >= 0.6 && 3 * whole.per_block <= 4 * balanced.per_block;
    return balances ? whole : balanced;
}

/* For kernels whose blocks process whole segments: the number of segments per head, at most chunks,
 * none empty, where a segment of all heads takes this many blocks. It is the smallest that leaves
 * the last wave at least 60 % full, if there is one. */
static inline int64_t plan_segments(int64_t blocks, int64_t chunks, int64_t resident)
{
    const int64_t most_waves = 8;
    int64_t best = 1;
    double best_share = 0;
    for (int64_t waves = 1; waves <= most_waves && blocks < resident; waves++) {
        int64_t segments = waves * resident / blocks;
        segments = segments < chunks ? segments : chunks;
        segments = ceiling_of_quotient(chunks, ceiling_of_quotient(chunks, segments));
        const double share = (double)((blocks * segments - 1) % resident + 1) / (double)resident;
        if (share > best_share && best_share < 0.6) {
            best = segments;
            best_share = share;
        }
    }
    return best;
}

#endif
