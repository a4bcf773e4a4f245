/* The kernels of LSH attention: see lsh.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LSH_LSH_H
#define TAPEGRAD_OPS_ATTENTION_LSH_LSH_H

#include "ops/attention/shared/arguments.h"
#include "ops/shared/math.h"

typedef struct LshRounds {
    AttentionInputs x; /* query and key are one tensor, of which u is made; positions from
                        * key_lengths[b] on are left out */
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

/* The four arrays in `places`, [B, H, rounds, N] each. ORDER: the position at each place of the
 * sorted order. PLACE: each position's place. LOW, HIGH: a position sees low <= place < high. */
enum { PLACES_ORDER, PLACES_PLACE, PLACES_LOW, PLACES_HIGH, PLACES_KINDS };

/* Offset in `places` of one array's [N] for a head and round. */
MATH_FUNCTION int64_t lsh_places_at(const LshRounds *rounds, int kind, int64_t head, int64_t round)
{
    return ((kind * rounds->x.B * rounds->x.H + head) * rounds->rounds + round) * rounds->x.N;
}

/* Size of the kernels' scratch memory in Reals: O(N). */
OLD_KERNEL(int64_t, lsh_attention_scratch, const LshRounds *rounds, bool backward);

OLD_KERNEL(void, lsh_attention_forward, Real *out, /* [B, N, H, M] */
           Real *log_sum,                          /* [B, N, H], saved for the backward pass */
           int32_t *places,                        /* likewise */
           Real *scratch, const LshRounds *rounds);

OLD_KERNEL(void, lsh_attention_backward, AttentionGradient d, /* key unused */
           const Real *dout,                                  /* [B, N, H, M] */
           const Real *out,                                   /* [B, N, H, M] */
           const Real *log_sum,                               /* [B, N, H] */
           const int32_t *places, Real *scratch, const LshRounds *rounds);
#endif
