/* LSH attention's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_LSH_OPERATIONS_H
#define TAPEGRAD_LSH_OPERATIONS_H

/* Values close to five directions, so that every precision puts them into the same buckets. */
static inline Tensor *near_directions(Tape *tape, Tensor *x)
{
    const int64_t count = tensor_count(x), width = x->shape.size[2] * x->shape.size[3];
    static Real *values; /* as in far_apart */
    free(values);
    values = malloc((size_t)(5 * width + count) * sizeof *values);
    if (!values)
        abort();
    Real *all = values + 5 * width;
    Random random = random_new(20200629, 50);
    random_normal(&random, values, 5 * width);
    for (int64_t i = 0; i < count; i++)
        all[i] = 2 * values[i / width % 5 * width + i % width];
    x = op_add(tape, op_scale(tape, x, 0.05), tape_input(tape, all, x->shape));
    tape_seed(tape, 3); /* hashes whose bucket boundaries are far from these */
    return x;
}

/* clang-format off */
#define LSH_OPERATIONS(ROW)                                                                        \
    ROW(causal_lsh_attention,                                                                      \
        op_causal_lsh_attention(tape, near_directions(tape, x[0]), x[1],                           \
                                (LshAttentionOptions){ .chunk = 8, .buckets = 6 }),                \
        UNMEASURED, { S(2, 9, 2, 3), S(2, 9, 2, 4) }, { S(1, 75, 1, 2), S(1, 75, 1, 1) },          \
        { S(1, 21, 1, 3), S(1, 21, 1, 3) }, { S(2, 33, 2, 8), S(2, 33, 2, 24) },                   \
        { S(1, 300, 1, 40), S(1, 300, 1, 72) })                                                    \
    ROW(lsh_attention,                                                                             \
        op_lsh_attention(tape, near_directions(tape, x[0]), x[1],                                  \
                         (LshAttentionOptions){ .rounds = 3,                                       \
                                                .buckets = 4,                                      \
                                                .key_lengths = lengths_of(tape, x[0]) }),          \
        UNMEASURED, { S(2, 9, 2, 3), S(2, 9, 2, 4) }, { S(2, 21, 1, 3), S(2, 21, 1, 1) },          \
        { S(2, 100, 2, 8), S(2, 100, 2, 5) },                                                      \
        { S(2, 300, 2, 8), S(2, 300, 2, 16) })                                                     \
    ROW(packed_lsh_attention,                                                                      \
        op_lsh_attention(tape, near_directions(tape, x[0]), NULL,                                  \
                         (LshAttentionOptions){ .rounds = 2, .chunk = 20 }),                       \
        UNMEASURED, { S(1, 9, 4, 3) }, { S(1, 150, 4, 32) }, { S(1, 1, 2, 3) })

#define LSH_RANDOM_ROWS(ROW)                                                                       \
    ROW(causal_lsh_attention, { S(B_, N_, H_, M_), S(B_, N_, H_, K_) })                            \
    ROW(lsh_attention, { S(2, N_, H_, M_), S(2, N_, H_, K_) })                                     \
    ROW(packed_lsh_attention, { S(B_, N_, 2 * H_, M_) })
/* clang-format on */

#endif
