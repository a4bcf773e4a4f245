/* The plans of ops/cuda/attention/linear/chunk_plan.h for GPUs of several sizes. */
#include "ops/cuda/attention/linear/chunk_plan.h"
#include "tests/support.h"

#include <stdio.h>

/* Multiprocessors of an H100, A100, RTX 4090 and a small GPU; each holds 1 to 3 resident blocks. */
static const int64_t multiprocessors[] = { 132, 108, 128, 20 };

/* From this number of waves on, a nearly empty last wave costs at most an eighth of the time. */
enum { MANY_WAVES = 8 };

/* Lengths N = 1 to 2^20 in chunks of 64: powers of 2, their neighbors, and 1.5 times them. */
static int64_t lengths(int64_t *chunks)
{
    int64_t count = 0;
    for (int64_t c = 1; c <= (1 << 20) / 64; c *= 2) {
        const int64_t near[] = { c, c + 1, c + c / 2, 2 * c - 1 };
        for (int i = 0; i < 4; i++)
            chunks[count++] = near[i];
    }
    return count;
}

static void assert_plan(int64_t heads, int64_t chunks, int64_t resident)
{
    const ChunkPlan plan = plan_chunks(heads, chunks, resident);
    const int64_t total = heads * chunks;
    const int64_t waves = ceiling_of_quotient(plan.blocks, resident);
    char what[128];
    snprintf(what, sizeof what, "heads %lld, chunks %lld, resident %lld: %lld blocks of %lld",
             (long long)heads, (long long)chunks, (long long)resident, (long long)plan.blocks,
             (long long)plan.per_block);
    ck_assert_msg((plan.blocks - 1) * plan.per_block < total &&
                      plan.blocks * plan.per_block >= total,
                  "%s: not every chunk is in one block", what);
    ck_assert_msg(plan.blocks <= resident || plan.per_block % chunks == 0, "%s: many waves", what);
    ck_assert_msg(plan.per_block <= 2 || last_wave(plan, resident) >= 0.6,
                  "%s: the last wave is nearly empty", what);
    /* Whole heads may take a third longer, because they need no sums over segments. */
    ck_assert_msg((double)(waves * plan.per_block) <=
                      4.0 / 3 * (double)ceiling_of_quotient(total, resident),
                  "%s: far from balanced", what);
}

TEST(every_plan_fills_its_last_wave)
{
    int64_t chunks[64];
    const int64_t count = lengths(chunks);
    for (int m = 0; m < 4; m++)
        for (int64_t per = 1; per <= 3; per++)
            for (int64_t heads = 1; heads <= 1024; heads += SLOW ? 7 : 1)
                for (int64_t i = 0; i < count; i++)
                    assert_plan(heads, chunks[i], multiprocessors[m] * per);
}

/* B H, N, and the resident blocks of an H100 for the kernels of D = 32, 64 and 128. */
TEST(plans_of_the_goals)
{
    static const int64_t goals[][3] = { { 8, 512, 396 },   { 8, 4096, 396 },   { 8, 65536, 396 },
                                        { 64, 4096, 264 }, { 16, 65536, 264 }, { 64, 8192, 132 } };
    for (size_t i = 0; i < sizeof goals / sizeof *goals; i++) {
        const int64_t *g = goals[i], chunks = g[1] / 64;
        const ChunkPlan plan = plan_chunks(g[0], chunks, g[2]);
        ck_assert_int_le(plan.blocks, g[2]);
        ck_assert(g[0] * chunks < 2 * g[2] || last_wave(plan, g[2]) > 0.6);
    }
}

/* A grid of whole segments: none is empty, and one more segment would not fit into the waves. */
TEST(segments_fill_their_waves)
{
    int64_t chunks[64];
    const int64_t count = lengths(chunks);
    for (int m = 0; m < 4; m++)
        for (int64_t blocks = 1; blocks <= 1024; blocks++)
            for (int64_t i = 0; i < count; i++) {
                const int64_t resident = 2 * multiprocessors[m];
                const int64_t segments = plan_segments(blocks, chunks[i], resident);
                const int64_t each = ceiling_of_quotient(chunks[i], segments);
                ck_assert_int_ge(segments, 1);
                ck_assert_int_eq(segments, ceiling_of_quotient(chunks[i], each));
                const int64_t waves = ceiling_of_quotient(blocks * segments, resident);
                if (blocks < resident && chunks[i] >= 8 * resident && waves < MANY_WAVES) {
                    const int64_t last = (blocks * segments - 1) % resident + 1;
                    ck_assert_int_ge(10 * last, 6 * resident);
                }
            }
}

int main(void)
{
    return test_main("chunk_plan", NULL, NULL);
}
