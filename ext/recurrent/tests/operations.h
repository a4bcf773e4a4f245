/* Recurrent layers' rows of tests/operations.h and tests/random_shapes.h. */
#ifndef TAPEGRAD_RECURRENT_OPERATIONS_H
#define TAPEGRAD_RECURRENT_OPERATIONS_H

static inline RecurrentWeights weights_of(Tape *tape, Tensor **x, int64_t gates)
{
    return (RecurrentWeights){ stable(tape, x[1]), stable(tape, x[2]),
                               rows_of(tape, x[3], 0, gates, true),
                               rows_of(tape, x[3], gates, gates, true) };
}

static inline Tensor *lstm_layer(Tape *tape, Tensor **x, LstmOptions options, Tensor **final)
{
    const int64_t B = x[0]->shape.size[0];
    if (x[3]->shape.size[0] > 8) {
        options.hidden = rows_of(tape, x[3], 8, B, false);
        options.cell = rows_of(tape, x[3], 8 + B, B, false);
    }
    return op_lstm(tape, x[0], weights_of(tape, x, 4), options, final, final ? final + 1 : NULL);
}

static inline Tensor *gru_layer(Tape *tape, Tensor **x, GruOptions options, Tensor **final)
{
    if (x[3]->shape.size[0] > 6)
        options.hidden = rows_of(tape, x[3], 6, x[0]->shape.size[0], false);
    return op_gru(tape, x[0], weights_of(tape, x, 3), options, final);
}

static inline Tensor *lstm_with_final(Tape *tape, Tensor **x, LstmOptions options)
{
    Tensor *parts[3];
    parts[0] = lstm_layer(tape, x, options, parts + 1);
    return with_final(tape, parts, 3);
}

static inline Tensor *gru_with_final(Tape *tape, Tensor **x, GruOptions options)
{
    Tensor *parts[2];
    parts[0] = gru_layer(tape, x, options, parts + 1);
    return with_final(tape, parts, 2);
}

/* clang-format off */
/* x, W_ih, W_hh and rows of biases and states of a recurrent layer with G gates */
#define RECURRENT(B, N, I, G, H, rows) S(B, N, I), P(G * H, I), P(G * H, H), P(rows, H)

#define RECURRENT_OPERATIONS(ROW)                                                                  \
    ROW(lstm, lstm_layer(tape, x, (LstmOptions){ .reverse = false }, NULL),                        \
        FLOPS(4.0 * WIDE, 12.0 * WIDE),                                                            \
        { RECURRENT(SEQUENCES, POSITIONS, WIDTH, 4, WIDTH, 8) }, { RECURRENT(2, 3, 2, 4, 3, 8) },  \
        { RECURRENT(1, 9, 1, 4, 2, 8) }, { RECURRENT(5, 11, 7, 4, 150, 8) })                       \
    ROW(lstm_from_state, lstm_with_final(tape, x, (LstmOptions){ .reverse = false }), UNMEASURED,  \
        { RECURRENT(2, 1, 2, 4, 3, 12) }, { RECURRENT(1, 10, 3, 4, 2, 10) },                       \
        { RECURRENT(17, 9, 3, 4, 21, 42) })                                                        \
    ROW(lstm_lengths,                                                                              \
        lstm_with_final(tape, x, (LstmOptions){ .lengths = lengths_of(tape, x[0]) }), UNMEASURED,  \
        { RECURRENT(2, 4, 2, 4, 3, 12) }, { RECURRENT(2, 9, 1, 4, 2, 8) },                         \
        { RECURRENT(2, 20, 3, 4, 40, 12) }, { RECURRENT(29, 11, 4, 4, 37, 66) })                   \
    ROW(lstm_reverse,                                                                              \
        lstm_with_final(tape, x, (LstmOptions){ .lengths = lengths_of(tape, x[0]),                 \
                                                .reverse = true }),                                \
        UNMEASURED, { RECURRENT(2, 4, 2, 4, 3, 8) }, { RECURRENT(2, 9, 1, 4, 2, 12) },             \
        { RECURRENT(2, 20, 3, 4, 190, 12) }, { RECURRENT(29, 11, 4, 4, 37, 8) })                   \
    ROW(lstm_without_bias,                                                                         \
        op_lstm(tape, x[0],                                                                        \
                (RecurrentWeights){ stable(tape, x[1]), stable(tape, x[2]), NULL, NULL },          \
                (LstmOptions){ .reverse = false }, NULL, NULL),                                    \
        UNMEASURED, { S(2, 3, 2), P(12, 2), P(12, 3) }, { S(5, 11, 7), P(148, 7), P(148, 37) })    \
    ROW(gru_without_bias, /* of x */                                                               \
        op_gru(tape, x[0],                                                                         \
               (RecurrentWeights){ stable(tape, x[1]), stable(tape, x[2]), NULL, x[3] },           \
               (GruOptions){ .reverse = false }, NULL),                                            \
        UNMEASURED, { S(2, 3, 2), P(9, 2), P(9, 3) }, { S(2, 3, 2), P(9, 2), P(9, 3), P(9) },      \
        { S(5, 11, 7), P(111, 7), P(111, 37) })                                                    \
    ROW(gru, gru_layer(tape, x, (GruOptions){ .reverse = false }, NULL),                           \
        FLOPS(3.0 * WIDE, 9.0 * WIDE),                                                             \
        { RECURRENT(SEQUENCES, POSITIONS, WIDTH, 3, WIDTH, 6) }, { RECURRENT(2, 3, 2, 3, 3, 6) },  \
        { RECURRENT(1, 9, 1, 3, 2, 6) }, { RECURRENT(5, 11, 7, 3, 170, 6) })                       \
    ROW(gru_from_state, gru_with_final(tape, x, (GruOptions){ .reverse = false }), UNMEASURED,     \
        { RECURRENT(2, 1, 2, 3, 3, 8) }, { RECURRENT(1, 10, 3, 3, 2, 7) },                         \
        { RECURRENT(17, 9, 3, 3, 21, 23) })                                                        \
    ROW(gru_lengths,                                                                               \
        gru_with_final(tape, x, (GruOptions){ .lengths = lengths_of(tape, x[0]) }), UNMEASURED,    \
        { RECURRENT(2, 4, 2, 3, 3, 8) }, { RECURRENT(2, 9, 1, 3, 2, 6) },                          \
        { RECURRENT(2, 20, 3, 3, 40, 8) }, { RECURRENT(29, 11, 4, 3, 37, 35) })                    \
    ROW(gru_reverse,                                                                               \
        gru_with_final(tape, x, (GruOptions){ .lengths = lengths_of(tape, x[0]),                   \
                                              .reverse = true }),                                  \
        UNMEASURED, { RECURRENT(2, 4, 2, 3, 3, 6) }, { RECURRENT(2, 9, 1, 3, 2, 8) },              \
        { RECURRENT(2, 20, 3, 3, 220, 8) }, { RECURRENT(29, 11, 4, 3, 37, 6) })

#define RECURRENT_RANDOM_ROWS(ROW)                                                                 \
    ROW(lstm, { RECURRENT(B_ * H_, N_, K_, 4, M_, 8 + K_ % 2 * 2 * B_ * H_) })                     \
    ROW(lstm_lengths, { RECURRENT(2, N_, K_, 4, M_, 8 + K_ % 2 * 4) })                             \
    ROW(lstm_reverse, { RECURRENT(2, N_, K_, 4, M_, 8 + K_ % 2 * 4) })                             \
    ROW(lstm_without_bias, { S(B_, N_, K_), P(4 * M_, K_), P(4 * M_, M_) })                        \
    ROW(gru_without_bias, { S(B_, N_, K_), P(3 * M_, K_), P(3 * M_, M_) })                         \
    ROW(gru, { RECURRENT(B_ * H_, N_, K_, 3, M_, 6 + K_ % 2 * B_ * H_) })                          \
    ROW(gru_lengths, { RECURRENT(2, N_, K_, 3, M_, 6 + K_ % 2 * 2) })                              \
    ROW(gru_reverse, { RECURRENT(2, N_, K_, 3, M_, 6 + K_ % 2 * 2) })                              \
    ROW(lstm_from_state, { RECURRENT(B_ * H_, N_, K_, 4, M_, 8 + 2 * B_ * H_) })                   \
    ROW(gru_from_state, { RECURRENT(B_ * H_, N_, K_, 3, M_, 6 + B_ * H_) })
/* clang-format on */

#endif
