/* LSH attention's kernels: see lsh_attention.c. */
#ifndef TAPEGRAD_LSH_KERNELS_H
#define TAPEGRAD_LSH_KERNELS_H

#include "extend.h"

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

typedef struct LshKernels {
    /* out [B, N, H, M]; m and inverse = 1 / l [B, N, H] (Real, in the order of the backend) and
     * order, saved for the backward pass */
    void (*forward)(Real *out, Real *m, Real *inverse, int32_t *order, const LshRounds *rounds);
    /* the gradients by query_key (d.query) and value, as far as their data is not NULL */
    void (*backward)(AttentionGradient d, const Real *dout, const Real *out, const Real *m,
                     const Real *inverse, const int32_t *order, const LshRounds *rounds);
} LshKernels;
extern const LshKernels lsh_plain, lsh_cpu, lsh_cpu_bf16, lsh_cuda, lsh_cuda_bf16;
C_FUNCTION const LshKernels *lsh_kernels(const Tensor *tensor);

#endif
