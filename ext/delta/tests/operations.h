/* The delta rule's rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_DELTA_OPERATIONS_H
#define TAPEGRAD_DELTA_OPERATIONS_H

/* The delta rule, x[3] betas in [0, 1.5] and, unless NULL, x[4] log decays, one per position and
 * head or per key dimension too, and x[5] the states: out and the final state in one tensor. Keys
 * have lengths below 1, where the state does not grow. */
static inline Tensor *delta_rule(Tape *tape, Tensor **x, DeltaRuleOptions options)
{
    Tensor *final_state;
    Tensor *key = x[1] ? op_scale(tape, x[1], 0.5 / sqrt((double)x[1]->shape.size[3])) : NULL;
    Tensor *query = x[1] ? x[0] : op_scale(tape, x[0], 0.5 / sqrt((double)x[0]->shape.size[3]));
    Tensor *beta = op_scale(tape, op_sigmoid(tape, x[3]), 1.5);
    options.log_decay = x[4] ? op_scale(tape, op_softplus(tape, x[4]), -0.5) : NULL;
    options.state = x[5];
    Tensor *out = op_delta_rule(tape, query, key, x[2], beta, options, &final_state);
    out = op_cast(tape, out, TENSOR_REAL);
    Tensor *parts[] = { op_reshape(tape, out, shape(tensor_count(out))),
                        op_reshape(tape, final_state, shape(tensor_count(final_state))) };
    return op_concat(tape, parts, 2, 0);
}

/* Four concatenated sequences, as in attend_by_offsets. */
static inline Tensor *delta_rule_of_offsets(Tape *tape, Tensor **x)
{
    const int32_t N = (int32_t)x[0]->shape.size[1], offsets[5] = { 0, 0, N / 2, N / 2 + 1, N };
    return delta_rule(tape, x,
                      (DeltaRuleOptions){ .offsets = tape_input_i32(tape, offsets, shape(5)) });
}

/* clang-format off */
/* The same with betas, log decays and the delta rule's states */
#define DELTA(B, N, H, D, M) QKV(B, N, H, D, M), P(B, N, H)
#define DELTAS(B, N, H, D, M, states) DELTA(B, N, H, D, M), P(B, N, H), P(states, H, D, M)
/* log decays per key dimension */
#define KEY_DELTAS(B, N, H, D, M, states) DELTA(B, N, H, D, M), P(B, N, H, D), P(states, H, D, M)

#define DELTA_OPERATIONS(ROW)                                                                      \
    ROW(delta_rule, delta_rule(tape, x, (DeltaRuleOptions){ 0 }),                                  \
        FLOPS(6.0 * HEAD_DIM, 20.0 * HEAD_DIM),                                                    \
        { DELTA(SEQUENCES, POSITIONS, HEADS, HEAD_DIM, HEAD_DIM) }, { DELTA(2, 4, 2, 3, 4) },      \
        { DELTA(1, 1, 1, 1, 1) }, { DELTA(2, 70, 2, 20, 36) }, { DELTA(1, 130, 1, 64, 64) },       \
        { DELTA(1, 100, 1, 130, 30) })                                                             \
    ROW(gated_delta_rule, delta_rule(tape, x, (DeltaRuleOptions){ 0 }), UNMEASURED,                \
        { DELTAS(2, 4, 1, 3, 4, 2) }, { DELTAS(2, 70, 2, 20, 36, 2) },                             \
        { DELTAS(3, 1, 1, 1, 5, 3) }, /* values and states of one shape */                         \
        { DELTAS(1, 100, 2, 33, 17, 1) }, { DELTAS(1, 200, 1, 128, 128, 1) },                      \
        { DELTAS(1, 33, 1, 3, 2, 1) }, { DELTAS(1, 513, 1, 3, 2, 1) }) /* ends of one position */  \
    ROW(packed_delta_rule, delta_rule(tape, (Tensor *[6]){ x[0], NULL, NULL, x[1] },               \
                                      (DeltaRuleOptions){ 0 }),                                    \
        UNMEASURED, { S(2, 4, 6, 3), P(2, 4, 2) }, { S(2, 67, 6, 16), P(2, 67, 2) })               \
    ROW(offsets_delta_rule, delta_rule_of_offsets(tape, x), UNMEASURED,                            \
        { DELTAS(1, 6, 1, 2, 3, 4) }, { DELTAS(1, 140, 2, 16, 24, 4) })                            \
    ROW(lengths_delta_rule,                                                                        \
        delta_rule(tape, x, (DeltaRuleOptions){ .key_lengths = lengths_of(tape, x[2]) }),          \
        UNMEASURED, { DELTAS(2, 5, 1, 3, 2, 2) }, { DELTAS(2, 130, 2, 16, 24, 2) })                \
    ROW(key_decay_delta_rule, delta_rule(tape, x, (DeltaRuleOptions){ 0 }),                        \
        FLOPS(8.0 * HEAD_DIM, 24.0 * HEAD_DIM),                                                    \
        { KEY_DELTAS(SEQUENCES, POSITIONS, HEADS, HEAD_DIM, HEAD_DIM, SEQUENCES) },                \
        { KEY_DELTAS(2, 4, 1, 3, 4, 2) }, { KEY_DELTAS(2, 70, 2, 20, 36, 2) },                     \
        { KEY_DELTAS(3, 1, 1, 1, 5, 3) }, { KEY_DELTAS(1, 100, 2, 33, 17, 1) },                    \
        { KEY_DELTAS(1, 200, 1, 128, 128, 1) }, { KEY_DELTAS(1, 33, 1, 3, 2, 1) },                 \
        { KEY_DELTAS(1, 513, 1, 3, 2, 1) })                                                        \
    ROW(offsets_key_decay_delta_rule, delta_rule_of_offsets(tape, x), UNMEASURED,                  \
        { KEY_DELTAS(1, 6, 1, 2, 3, 4) }, { KEY_DELTAS(1, 140, 2, 16, 24, 4) })                    \
    ROW(lengths_key_decay_delta_rule,                                                              \
        delta_rule(tape, x, (DeltaRuleOptions){ .key_lengths = lengths_of(tape, x[2]) }),          \
        UNMEASURED, { KEY_DELTAS(2, 5, 1, 3, 2, 2) }, { KEY_DELTAS(2, 130, 2, 16, 24, 2) })

#define DELTA_RANDOM_ROWS(ROW)                                                                     \
    ROW(delta_rule, { DELTA(B_, N_, H_, M_, K_) })                                                 \
    ROW(packed_delta_rule, { S(B_, N_, 3 * H_, M_), P(B_, N_, H_) })                               \
    ROW(gated_delta_rule, { DELTAS(B_, N_, H_, M_, K_, B_) })                                      \
    ROW(offsets_delta_rule, { DELTAS(1, N_ + 2, H_, M_, K_, 4) })                                  \
    ROW(lengths_delta_rule, { DELTAS(2, N_, H_, M_, K_, 2) })                                      \
    ROW(key_decay_delta_rule, { KEY_DELTAS(B_, N_, H_, M_, K_, B_) })                              \
    ROW(offsets_key_decay_delta_rule, { KEY_DELTAS(1, N_ + 2, H_, M_, K_, 4) })                    \
    ROW(lengths_key_decay_delta_rule, { KEY_DELTAS(2, N_, H_, M_, K_, 2) })
/* clang-format on */

#endif
