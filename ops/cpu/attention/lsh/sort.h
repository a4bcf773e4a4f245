/* Hashing and sorting of LSH attention on the CPU, which fill `order` (lsh.h). As on CUDA the sums
 * x R run over d in order, so both devices compute the same buckets. */
#ifndef TAPEGRAD_OPS_CPU_ATTENTION_LSH_SORT_H
#define TAPEGRAD_OPS_CPU_ATTENTION_LSH_SORT_H

#include "ops/attention/lsh/lsh.h"
#include "ops/cpu/shared/tiles.h"

enum { HASH_TILE = 32 }; /* positions that are hashed together */
_Static_assert(HASH_TILE % LANES == 0, "tiles are whole vectors");

/* Reals that hash_tile needs: x [HASH_TILE, D], its transpose, and x R [columns, HASH_TILE]. */
static int64_t hash_scratch(const LshRounds *a)
{
    return HASH_TILE * (2 * round_up(a->x.D, LANES) + round_up(lsh_columns(a), ROWS));
}

/* -------------------------------------------------------------------------------------- hashing */

/* One Philox counter yields four elements. R is padded by the rows that a product reads past its
 * end. */
static void draw_matrices(Real *R, const LshRounds *a)
{
    enum { BLOCK = 1024 };
    const int64_t n = lsh_random_numbers(a);
#pragma omp parallel for schedule(static) num_threads(device_threads_for(n, 5))
    for (int64_t start = 0; start < n; start += BLOCK) {
        Random random = a->random;
        random.counter += (uint64_t)start / 4;
        random_normal(&random, R + start, minimum(BLOCK, n - start));
    }
    memset(R + n, 0, (size_t)(ROWS * a->x.D) * sizeof *R);
}

/* bucket = bucket * buckets + argmax([p; -p]) for each position's p: half = buckets / 2 values,
 * HASH_TILE apart. */
static void add_hash(int32_t *restrict bucket, const Real *restrict p, int64_t buckets)
{
    const int32_t half = (int32_t)(buckets / 2);
    Real max[HASH_TILE];
    int32_t argmax[HASH_TILE] = { 0 };
    for (int i = 0; i < HASH_TILE; i++)
        max[i] = -INFINITY;
    for (int32_t k = 0; k < 2 * half; k++) {
        const Real *p_k = p + (k < half ? k : k - half) * HASH_TILE, sign = k < half ? 1 : -1;
#pragma omp simd
        for (int i = 0; i < HASH_TILE; i++) {
            const Real value = sign * p_k[i];
            argmax[i] = value > max[i] ? k : argmax[i];
            max[i] = value > max[i] ? value : max[i];
        }
    }
    for (int i = 0; i < HASH_TILE; i++)
        bucket[i] = bucket[i] * (int32_t)buckets + argmax[i];
}

/* Stores the buckets of positions first, first + 1, ... of a head in VISIBLE_BEGIN, of all
 * rounds. */
static void hash_tile(int type, int32_t *order, Real *scratch, const Real *R, const LshRounds *a,
                      int64_t head, int64_t first)
{
    const AttentionInputs *x = &a->x;
    const int64_t D = x->D, padded = round_up(D, LANES), h = head % x->H;
    const int64_t columns = lsh_columns(a), count = minimum(HASH_TILE, x->N - first);
    const Real *row = elements_at(type, x->query, attention_query_at(x, head / x->H, h, first));
    Real *packed = scratch, *transposed = packed + HASH_TILE * padded;
    Real *projections = transposed + HASH_TILE * padded;
    pack(packed, &(Rows){ type, row, x->query_stride, count, D }, padded, 1, AHEAD);
    transpose(transposed, packed, padded, count, D, HASH_TILE);
    for (int64_t round = 0; round < a->rounds; round++) {
        set_product(projections, R + (round * x->H + h) * columns * D, D, transposed, HASH_TILE,
                    round_up(columns, ROWS), D, HASH_TILE);
        int32_t bucket[HASH_TILE] = { 0 };
        add_hash(bucket, projections, a->factor[0]);
        add_hash(bucket, projections + a->factor[0] / 2 * HASH_TILE, a->factor[1]);
        memcpy(order + lsh_order_at(a, VISIBLE_BEGIN, head, round) + first, bucket,
               (size_t)count * sizeof *bucket);
    }
}

/* -------------------------------------------------------------------------------------- sorting */

/* A counting sort of a head's positions by (bucket, position). After the prefix sum count[bucket]
 * is the bucket's first rank, after the assignment of ranks the first rank after the bucket. */
static void sort_head(int32_t *order, int32_t *count, const LshRounds *a, int64_t head,
                      int64_t round)
{
    int32_t *sorted_index = order + lsh_order_at(a, SORTED_INDEX, head, round);
    int32_t *rank = order + lsh_order_at(a, RANK, head, round);
    int32_t *visible_begin = order + lsh_order_at(a, VISIBLE_BEGIN, head, round);
    int32_t *visible_end = order + lsh_order_at(a, VISIBLE_END, head, round);
    const int32_t *bucket = visible_begin; /* of hash_tile; each is read before it is replaced */
    const int64_t buckets = a->factor[0] * a->factor[1], m = a->chunk;
    const int64_t positions = a->x.key_lengths ? a->x.key_lengths[head / a->x.H] : a->x.N;
    memset(count, 0, (size_t)(buckets + 1) * sizeof *count);
    for (int64_t i = 0; i < positions; i++)
        count[bucket[i] + 1]++;
    for (int64_t k = 0; k < buckets; k++)
        count[k + 1] += count[k];
    for (int64_t i = 0; i < positions; i++)
        rank[i] = count[bucket[i]]++;
    for (int64_t i = 0; i < positions; i++) {
        const int64_t bucket_begin = bucket[i] ? count[bucket[i] - 1] : 0;
        const int64_t bucket_end = count[bucket[i]], chunk = rank[i] / m;
        sorted_index[rank[i]] = (int32_t)i;
        visible_begin[i] = (int32_t)maximum(bucket_begin, (chunk - 1) * m);
        visible_end[i] = a->causal ? rank[i] : (int32_t)minimum(bucket_end, (chunk + 1) * m);
    }
}

/* Fills `order`. */
static void sort_positions(int type, int32_t *order, const LshRounds *a, int threads)
{
    const int64_t heads = a->x.B * a->x.H, tiles = (a->x.N + HASH_TILE - 1) / HASH_TILE;
    const int64_t counts = round_up(a->factor[0] * a->factor[1] + 1, UNIT);
    const int64_t size = maximum(hash_scratch(a), counts);
    Real *scratch = device_workspace(device_threads() * size);
    Real *R = device_workspace(lsh_random_numbers(a) + ROWS * a->x.D);
    draw_matrices(R, a);
#pragma omp parallel num_threads(threads)
    {
        Real *own = scratch + omp_get_thread_num() * size;
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * tiles; unit++)
            hash_tile(type, order, own, R, a, unit / tiles, unit % tiles * HASH_TILE);
#pragma omp for schedule(static)
        for (int64_t unit = 0; unit < heads * a->rounds; unit++)
            sort_head(order, (int32_t *)(void *)own, a, unit / a->rounds, unit % a->rounds);
    }
    device_workspace_free(R);
    device_workspace_free(scratch);
}

#endif
