/* The kernels of LSH attention: see lsh.c. */
#ifndef TAPEGRAD_OPS_ATTENTION_LSH_LSH_H
#define TAPEGRAD_OPS_ATTENTION_LSH_LSH_H

#include "ops/attention/shared/arguments.h"

/* Head h of position n of sequence b begins at x + (b N + n) x_stride + h D, and at
 * value + (b N + n) value_stride + h M. */
typedef struct LshRounds {
    const Real *x;          /* [B, N, H, D]: queries, and keys before they are normalised */
    const Real *value;      /* [B, N, H, M] */
    const int32_t *lengths; /* [B], or NULL: positions from there on are left out */
    int64_t x_stride, value_stride;
    int64_t B, N, H, D, M;
    int64_t rounds, chunk;
    int64_t factor[2]; /* buckets of the two hashes; 1: there is no such hash */
    bool causal;
    Random random;         /* before the draw; forward alone */
    const uint64_t *start; /* NULL, or in the memory of a CUDA device: added to random's counter */
} LshRounds;

#define LSH_EPS ((Real)1e-6) /* added to the square of a key's length */

/* Columns of the matrices R of one round and head, side by side. */
static inline int64_t lsh_columns(const LshRounds *rounds)
{
    return rounds->factor[0] / 2 + rounds->factor[1] / 2;
}

/* How many numbers the matrices are: [rounds, H, columns, D], drawn in this order as random_normal
 * draws. */
static inline int64_t lsh_random_numbers(const LshRounds *rounds)
{
    return rounds->rounds * rounds->H * lsh_columns(rounds) * rounds->D;
}

/* Where gradients go, with the strides of the arguments. */
typedef struct LshGradient {
    Gradient x;     /* [B, N, H, D] */
    Gradient value; /* [B, N, H, M] */
} LshGradient;

/* What `places` holds, [B, H, rounds, N] each: the position at each place of the sorted order; and of
 * each position its place, and which places it sees, from low on before high. */
enum { PLACES_ORDER, PLACES_PLACE, PLACES_LOW, PLACES_HIGH, PLACES_KINDS };

/* Where a part of places begins. */
static inline int64_t lsh_places_at(const LshRounds *rounds, int kind, int64_t head, int64_t round)
{
    return ((kind * rounds->B * rounds->H + head) * rounds->rounds + round) * rounds->N;
}

/* How many numbers of scratch memory the kernels want: O(N). */
int64_t lsh_attention_scratch_cpu(const LshRounds *rounds, bool backward);

void lsh_attention_forward_cpu(Real *out,       /* [B, N, H, M] */
                               Real *log_sum,   /* [B, N, H], kept for backward */
                               int32_t *places, /* likewise */
                               Real *scratch, const LshRounds *rounds);

void lsh_attention_backward_cpu(LshGradient d, const Real *dout, /* [B, N, H, M] */
                                const Real *out,                 /* [B, N, H, M] */
                                const Real *log_sum,             /* [B, N, H] */
                                const int32_t *places, Real *scratch, const LshRounds *rounds);
#endif
