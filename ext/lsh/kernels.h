/* The arguments of LSH attention's kernels: see lsh.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LSH_LSH_H
#define TAPEGRAD_OPS_ATTENTION_LSH_LSH_H

#include "ops/attention/shared/arguments.h"

typedef struct LshRounds {
    AttentionInputs x; /* query and key are one tensor, of which u is made; positions from
                        * key_lengths[b] on are masked */
    int64_t rounds, chunk;
    int64_t factor[2]; /* buckets of each of the two hash functions; 1: unused */
    bool causal;
    Random random;         /* before the draw; forward only */
    const uint64_t *start; /* NULL, or in CUDA device memory: added to random's Philox counter */
} LshRounds;

#define LSH_EPS ((Real)1e-6) /* added to |x|^2 */

/* Columns of the concatenated matrices R of one round and head. */
static inline int64_t lsh_columns(const LshRounds *rounds)
{
    return rounds->factor[0] / 2 + rounds->factor[1] / 2;
}

/* Number of elements of all matrices R: [rounds, H, columns, D], drawn by random_normal in this
 * order. */
static inline int64_t lsh_random_numbers(const LshRounds *rounds)
{
    return rounds->rounds * rounds->x.H * lsh_columns(rounds) * rounds->x.D;
}

/* The sorted order of all heads and rounds: four arrays [B, H, rounds, N]. SORTED_INDEX: the
 * position of each rank. RANK: each position's rank. VISIBLE_BEGIN, VISIBLE_END: a position attends
 * to the ranks visible_begin <= rank < visible_end, except its own. The plain kernels store only
 * BUCKET, the bucket of each position, and RANK. */
enum { SORTED_INDEX, RANK, VISIBLE_BEGIN, VISIBLE_END, ORDER_ARRAYS, BUCKET = SORTED_INDEX };

/* Offset in `order` of one array's [N] for a head and round. */
SHARED_FUNCTION int64_t lsh_order_at(const LshRounds *rounds, int array, int64_t head,
                                     int64_t round)
{
    return ((array * rounds->x.B * rounds->x.H + head) * rounds->rounds + round) * rounds->x.N;
}

#endif
