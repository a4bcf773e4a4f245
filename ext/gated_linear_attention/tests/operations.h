/* Gated linear attention's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_GATED_LINEAR_ATTENTION_OPERATIONS_H
#define TAPEGRAD_GATED_LINEAR_ATTENTION_OPERATIONS_H

/* x[3] log decays by softplus and, unless NULL, x[4] the states: out and the final state in one
 * tensor, scaled as a mean over positions is. */
static inline Tensor *decay_by_key(Tape *tape, Tensor **x, GatedLinearAttentionOptions options)
{
    Tensor *final_state;
    Tensor *log_decay = op_scale(tape, op_softplus(tape, x[3]), -0.5);
    options.state = x[4];
    Tensor *out =
        op_gated_linear_attention(tape, x[0], x[1], x[2], log_decay, options, &final_state);
    out = op_cast(tape, out, TENSOR_REAL);
    Tensor *parts[] = { op_reshape(tape, out, shape(tensor_count(out))),
                        op_reshape(tape, final_state, shape(tensor_count(final_state))) };
    return op_concat(tape, parts, 2, 0);
}

/* clang-format off */
/* Queries, keys, values and log decays; and states */
#define GLA(B, N, H, D, M) QKV(B, N, H, D, M), P(B, N, H, D)
#define GLAS(B, N, H, D, M, states) GLA(B, N, H, D, M), P(states, H, D, M)

#define GATED_LINEAR_ATTENTION_OPERATIONS(ROW)                                                     \
    ROW(decay_by_key, decay_by_key(tape, x, (GatedLinearAttentionOptions){ 0 }), UNMEASURED,       \
        { GLA(2, 4, 2, 3, 4) }, { GLA(1, 1, 1, 1, 1) }, { GLA(2, 70, 2, 20, 36) },                 \
        { GLA(1, 130, 1, 64, 64) }, { GLA(1, 100, 1, 130, 30) })                                   \
    ROW(states_decay_by_key, decay_by_key(tape, x, (GatedLinearAttentionOptions){ 0 }),            \
        UNMEASURED, { GLAS(2, 4, 1, 3, 4, 2) }, { GLAS(2, 70, 2, 20, 36, 2) },                     \
        { GLAS(3, 1, 1, 1, 5, 3) }, /* values and states of one shape */                           \
        { GLAS(1, 129, 2, 33, 17, 1) }, { GLAS(1, 200, 1, 128, 128, 1) })                          \
    ROW(packed_decay_by_key, decay_by_key(tape, (Tensor *[5]){ x[0], NULL, NULL, x[1] },           \
                                          (GatedLinearAttentionOptions){ 0 }),                     \
        UNMEASURED, { S(2, 4, 6, 3), P(2, 4, 2, 3) }, { S(2, 67, 6, 16), P(2, 67, 2, 16) })        \
    ROW(offsets_decay_by_key,                                                                      \
        decay_by_key(tape, x, (GatedLinearAttentionOptions){ .offsets = four_sequences(tape, x) }),\
        UNMEASURED, { GLAS(1, 6, 1, 2, 3, 4) }, { GLAS(1, 140, 2, 16, 24, 4) })                    \
    ROW(lengths_decay_by_key,                                                                      \
        decay_by_key(tape, x,                                                                      \
                     (GatedLinearAttentionOptions){ .key_lengths = lengths_of(tape, x[2]) }),      \
        UNMEASURED, { GLAS(2, 5, 1, 3, 2, 2) }, { GLAS(2, 130, 2, 16, 24, 2) })

#define GATED_LINEAR_ATTENTION_RANDOM_ROWS(ROW)                                                    \
    ROW(decay_by_key, { GLA(B_, N_, H_, M_, K_) })                                                 \
    ROW(packed_decay_by_key, { S(B_, N_, 3 * H_, M_), P(B_, N_, H_, M_) })                         \
    ROW(states_decay_by_key, { GLAS(B_, N_, H_, M_, K_, B_) })                                     \
    ROW(offsets_decay_by_key, { GLAS(1, N_ + 2, H_, M_, K_, 4) })                                  \
    ROW(lengths_decay_by_key, { GLAS(2, N_, H_, M_, K_, 2) })
/* clang-format on */

#endif
