/* Linear attention with a decay, normalized and not: published recurrences, itself with the
 * sequence split, packed and masked, and misuse; the layers with gates. */
#include "tests/folder.h"
#include "tests/kinds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
#define GATES_TOLERANCE 1e-10
#else
#define GATES_TOLERANCE 2e-5
#endif

typedef CausalLinearAttentionOptions Options;

enum { QUERY, KEY, VALUE, LOG_DECAY, STATE, INPUTS };

typedef struct Results {
    Tape *tape;
    Tensor *x[INPUTS], *out, *final_state;
} Results;

/* The backward pass of sum(out g) + sum(final_state h), whose gradients by out and final_state are
 * g and h */
static void backward_from_both(Results *r, Tensor *g, Tensor *h)
{
    Tensor *by_out = op_sum(r->tape, op_multiply(r->tape, r->out, g), ALL_AXES);
    Tensor *by_state = op_sum(r->tape, op_multiply(r->tape, r->final_state, h), ALL_AXES);
    tensor_keep(r->out);
    tensor_keep(r->final_state);
    tape_backward(r->tape, op_add(r->tape, by_out, by_state));
}

/* ------------------------------------------------------------------------ published recurrences
 * Each in plain loops in double, for B sequences of N positions and H heads. */

enum { B = 2, N = 77, H = 3, D = 6, M = 10, ROWS = B * N * H };

static Tensor *rows(Tape *tape, uint64_t stream, int64_t width)
{
    return tape_input(tape, test_normal(stream, ROWS * width), shape(B, N, H, width));
}

/* The row of position n in an array [B, N, H] of rows, of head `head` in [0, B H) */
static int64_t row_of(int64_t head, int64_t n)
{
    return (head / H * N + n) * H + head % H;
}

/* S <- decay S + y w^T      o = S^T x      x, y [D], w, o [columns], S [D, columns] */
static void step(double *S, double decay, const Real *y, const Real *w, const Real *x, Real *o,
                 int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++) {
            S[d * columns + c] = decay * S[d * columns + c] + (double)y[d] * (double)w[c];
            sum += S[d * columns + c] * (double)x[d];
        }
        o[c] = (Real)sum;
    }
}

static void assert_rows(const Tensor *out, const Real *expected)
{
    assert_close(test_values(out), expected, tensor_count(out), GATES_TOLERANCE);
}

static const Options unnormalized = { .features = FEATURE_MAP_IDENTITY, .unnormalized = true };

/* RetNet (Sun et al. 2023, equation 6, without its rotation of queries and keys and without the
 * norm after it): S_n = gamma S_{n-1} + K_n^T V_n, out_n = Q_n S_n, gamma = 1 - 2^(-5 - h). */
TEST(retention_is_a_constant_decay)
{
    Tape *tape = tape_new(test_device());
    Tensor *q = rows(tape, 1, D), *k = rows(tape, 2, D), *v = rows(tape, 3, M);
    const Real *Q = test_values(q), *K = test_values(k), *V = test_values(v);
    Real expected[ROWS * M], log_decay[H];
    for (int64_t h = 0; h < H; h++)
        log_decay[h] = (Real)log(1 - exp2(-5. - (double)h));
    for (int64_t head = 0; head < B * H; head++) {
        double S[D * M] = { 0 };
        for (int64_t n = 0; n < N; n++) {
            const int64_t r = row_of(head, n);
            step(S, 1 - exp2(-5. - (double)(head % H)), K + r * D, V + r * M, Q + r * D,
                 expected + r * M, M);
        }
    }
    Options options = unnormalized;
    options.log_decay = tape_input(tape, log_decay, shape(H));
    assert_rows(op_causal_linear_attention(tape, q, k, v, options, NULL), expected);
    tape_free(tape);
}

/* Lightning attention (Qin et al. 2024, Lightning Attention-2, equation 4), in its parallel form
 * O = ((Q K^T) o Lambda) V, Lambda_ts = lambda^(t - s) for t >= s, lambda = e^(-8 h / H), with silu
 * of queries and keys as in MiniMax-01, without the norm after it. */
TEST(lightning_attention_is_a_constant_decay)
{
    Tape *tape = tape_new(test_device());
    Tensor *q = op_silu(tape, rows(tape, 1, D)), *k = op_silu(tape, rows(tape, 2, D));
    Tensor *v = rows(tape, 3, M);
    const Real *Q = test_values(q), *K = test_values(k), *V = test_values(v);
    Real expected[ROWS * M], log_decay[H];
    for (int64_t h = 0; h < H; h++)
        log_decay[h] = (Real)(-8. * (double)(h + 1) / H);
    for (int64_t head = 0; head < B * H; head++)
        for (int64_t t = 0; t < N; t++)
            for (int64_t m = 0; m < M; m++) {
                double sum = 0;
                for (int64_t s = 0; s <= t; s++)
                    sum += test_dot(Q + row_of(head, t) * D, K + row_of(head, s) * D, D) *
                           exp((double)log_decay[head % H] * (double)(t - s)) *
                           (double)V[row_of(head, s) * M + m];
                expected[row_of(head, t) * M + m] = (Real)sum;
            }
    Options options = unnormalized;
    options.log_decay = tape_input(tape, log_decay, shape(H));
    assert_rows(op_causal_linear_attention(tape, q, k, v, options, NULL), expected);
    tape_free(tape);
}

/* Mamba-2's scan (Dao and Gu 2024, section 2.1 with scalar A, and the discretization of Mamba):
 * S_n = e^(-A dt_n) S_{n-1} + dt_n B_n x_n^T, y_n = C_n^T S_n, without the skip connection D x.
 * Keys are B scaled by dt; B and C are per head here. */
TEST(the_scan_of_mamba_2)
{
    Tape *tape = tape_new(test_device());
    static const Real A[H] = { 1, 2, 4 };
    Tensor *C = rows(tape, 1, D), *keys = rows(tape, 2, D), *x = rows(tape, 3, M);
    Tensor *dt = op_softplus(tape, rows(tape, 4, 1));
    const Real *c = test_values(C), *b = test_values(keys), *values = test_values(x);
    const Real *step_of = test_values(dt);
    Real expected[ROWS * M];
    for (int64_t head = 0; head < B * H; head++) {
        double S[D * M] = { 0 };
        for (int64_t n = 0; n < N; n++) {
            const int64_t r = row_of(head, n);
            Real y[D];
            for (int64_t d = 0; d < D; d++)
                y[d] = step_of[r] * b[r * D + d];
            step(S, exp(-(double)A[head % H] * (double)step_of[r]), y, values + r * M, c + r * D,
                 expected + r * M, M);
        }
    }
    Options options = unnormalized;
    options.log_decay = op_scale(
        tape,
        op_multiply(tape, op_reshape(tape, dt, shape(B, N, H)), tape_input(tape, A, shape(H))), -1);
    keys = op_multiply(tape, keys, op_broadcast_to(tape, dt, keys->shape));
    assert_rows(op_causal_linear_attention(tape, C, keys, x, options, NULL), expected);
    tape_free(tape);
}

/* mLSTM (Beck et al. 2024, xLSTM, equations 19 to 27, without the stabilizer m_t, and without the
 * output gate): C_n = f_n C_{n-1} + i_n v_n k_n^T, n_n = f_n n_{n-1} + i_n k_n,
 * h_n = C_n q_n / max(|n_n.q_n|, 1), with f = sigmoid(f~), i = e^(i~). The log decay is
 * log sigmoid(f~), keys are scaled by i. One unnormalized call with values [v, 1] computes C q and
 * n.q; the test divides, because the operation's normalizer has no maximum. */
TEST(the_memory_of_mlstm)
{
    enum { W = M + 1 };
    Tape *tape = tape_new(test_device());
    Tensor *q = rows(tape, 1, D), *k = rows(tape, 2, D), *v = rows(tape, 3, M);
    Tensor *forget = rows(tape, 4, 1), *input = rows(tape, 5, 1);
    const Real *Q = test_values(q), *K = test_values(k), *V = test_values(v);
    const Real *f = test_values(forget), *in = test_values(input);
    Real expected[ROWS * M], actual[ROWS * M];
    for (int64_t head = 0; head < B * H; head++) {
        double C[D * M] = { 0 }, normalizer[D] = { 0 };
        for (int64_t n = 0; n < N; n++) {
            const int64_t r = row_of(head, n);
            const double decay = 1 / (1 + exp(-(double)f[r])), i = exp((double)in[r]);
            double nq = 0;
            Real Cq[M];
            Real y[D];
            for (int64_t d = 0; d < D; d++) {
                y[d] = (Real)(i * (double)K[r * D + d]);
                normalizer[d] = decay * normalizer[d] + i * (double)K[r * D + d];
                nq += normalizer[d] * (double)Q[r * D + d];
            }
            step(C, decay, y, V + r * M, Q + r * D, Cq, M);
            for (int64_t m = 0; m < M; m++)
                expected[r * M + m] = (Real)((double)Cq[m] / fmax(fabs(nq), 1));
        }
    }
    Options options = unnormalized;
    Tensor *ones = op_add_scalar(tape, op_scale(tape, forget, 0), 1);
    options.log_decay = op_log_sigmoid(tape, op_reshape(tape, forget, shape(B, N, H)));
    k = op_multiply(tape, k, op_broadcast_to(tape, op_exp(tape, input), k->shape));
    const Real *out = test_values(op_causal_linear_attention(
        tape, q, k, op_concat(tape, (Tensor *[]){ v, ones }, 2, 3), options, NULL));
    for (int64_t i = 0; i < ROWS * M; i++)
        actual[i] =
            (Real)((double)out[i / M * W + i % M] / fmax(fabs((double)out[i / M * W + M]), 1));
    assert_close(actual, expected, ROWS * M, GATES_TOLERANCE);
    tape_free(tape);
}

/* Power retention (Gelada, Buckman, Zhang, Bach 2025) of degree 2, with a gate and the sum of the
 * weights as divisor: out_n = sum_{j<=n} w_nj v_j / sum_{j<=n} w_nj with the weights
 * w_nj = e^(l_{j+1} + .. + l_n) (1 + q_n.k_j)^2. op_polynomial_features has all terms of degree 0
 * to 2, hence the 1. */
TEST(power_retention_of_degree_2)
{
    Tape *tape = tape_new(test_device());
    Tensor *q = rows(tape, 1, D), *k = rows(tape, 2, D), *v = rows(tape, 3, M);
    Tensor *log_decay = op_scale(tape, op_softplus(tape, rows(tape, 4, 1)), -0.2);
    const Real *Q = test_values(q), *K = test_values(k), *V = test_values(v);
    const Real *l = test_values(log_decay);
    Real expected[ROWS * M];
    for (int64_t head = 0; head < B * H; head++)
        for (int64_t n = 0; n < N; n++) {
            double num[M] = { 0 }, den = 0, L = 0;
            for (int64_t j = n; j >= 0; j--) {
                const int64_t r = row_of(head, j);
                const double qk = test_dot(Q + row_of(head, n) * D, K + r * D, D);
                const double weight = exp(L) * (1 + qk) * (1 + qk);
                for (int64_t m = 0; m < M; m++)
                    num[m] += weight * (double)V[r * M + m];
                den += weight;
                L += (double)l[r];
            }
            for (int64_t m = 0; m < M; m++)
                expected[row_of(head, n) * M + m] = (Real)(num[m] / den);
        }
    const Options options = { .features = FEATURE_MAP_IDENTITY,
                              .log_decay = op_reshape(tape, log_decay, shape(B, N, H)) };
    assert_rows(op_causal_linear_attention(tape, op_polynomial_features(tape, q),
                                           op_polynomial_features(tape, k), v, options, NULL),
                expected);
    tape_free(tape);
}

/* ------------------------------------------------------------------------------------ sequences */

/* The inputs of `sequences` batched sequences of N positions with `states` initial states */
typedef struct Inputs {
    int64_t sequences, states;
    Options options;
    Real *values[INPUTS];
} Inputs;

static Shape shape_of(const Inputs *in, int input)
{
    return input == STATE       ? shape(in->states, H, D, M + !in->options.unnormalized)
           : input == LOG_DECAY ? shape(in->sequences, N, H)
                                : shape(in->sequences, N, H, input == VALUE ? M : D);
}

/* Random values, log decays in [-1, 0]; states as sums of mapped keys and values, positive */
static Inputs inputs_of(int64_t sequences, int64_t states, Options options)
{
    Inputs in = { .sequences = sequences, .states = states, .options = options };
    for (int i = 0; i < INPUTS; i++) {
        const int64_t count = shape_count(shape_of(&in, i));
        in.values[i] = test_normal((uint64_t)i + 1, count);
        for (int64_t k = 0; k < count && i >= LOG_DECAY; k++) {
            const Real x = (Real)fabs(sin((double)in.values[i][k]));
            in.values[i][k] = i == STATE ? x : -x;
        }
    }
    return in;
}

static Results variables_of(Device *device, const Inputs *in)
{
    Results r = { .tape = tape_new(device) };
    for (int i = 0; i < INPUTS; i++)
        r.x[i] = tape_variable(r.tape, in->values[i], shape_of(in, i));
    return r;
}

static Results finish(Results r)
{
    backward_from_both(
        &r, tape_input(r.tape, test_normal(20, tensor_count(r.out)), r.out->shape),
        tape_input(r.tape, test_normal(21, tensor_count(r.final_state)), r.final_state->shape));
    return r;
}

static Results run(Device *device, const Inputs *in)
{
    Results r = variables_of(device, in);
    Options options = in->options;
    options.log_decay = r.x[LOG_DECAY];
    options.state = r.x[STATE];
    r.out = op_causal_linear_attention(r.tape, r.x[QUERY], r.x[KEY], r.x[VALUE], options,
                                       &r.final_state);
    return finish(r);
}

/* Results of the positions between cuts (cuts[0] = 0, cuts[count] = N), the state passed on; or,
 * with states of their own, of separate sequences */
static Results run_parts(const Inputs *in, const int64_t *cuts, int count, bool separate)
{
    Results r = variables_of(test_device(), in);
    Tensor *outs[N], *states[N];
    for (int part = 0; part < count; part++) {
        Tensor *x[INPUTS];
        for (int i = 0; i < STATE; i++)
            x[i] = op_slice(r.tape, r.x[i], 1, cuts[part], cuts[part + 1] - cuts[part]);
        Options options = in->options;
        options.log_decay = x[LOG_DECAY];
        options.state = separate ? op_slice(r.tape, r.x[STATE], 0, part, 1)
                        : part   ? states[part - 1]
                                 : r.x[STATE];
        outs[part] =
            op_causal_linear_attention(r.tape, x[QUERY], x[KEY], x[VALUE], options, &states[part]);
    }
    r.out = op_concat(r.tape, outs, count, 1);
    r.final_state = separate ? op_concat(r.tape, states, count, 0) : states[count - 1];
    return finish(r);
}

static void assert_same_inputs(const Results *a, const Results *b, int inputs)
{
    for (int i = 0; i < inputs; i++)
        assert_close(test_values(tensor_gradient(a->x[i])), test_values(tensor_gradient(b->x[i])),
                     tensor_count(a->x[i]), GATES_TOLERANCE);
}

static void assert_same(const Results *a, const Results *b)
{
    assert_close(test_values(a->out), test_values(b->out), tensor_count(a->out), GATES_TOLERANCE);
    assert_close(test_values(a->final_state), test_values(b->final_state),
                 tensor_count(a->final_state), GATES_TOLERANCE);
    assert_same_inputs(a, b, INPUTS);
}

/* Normalized and not, in every form */
#define EACH_KIND(o)                                                                               \
    for (Options o = { 0 }; o.form <= FORM_QUADRATIC;                                              \
         o.form += o.unnormalized, o.unnormalized = !o.unnormalized)

/* One position at a time is how a model generates. */
TEST(parts_equal_the_whole)
{
    EACH_KIND(kind)
    {
        Options options = kind;
        const Inputs in = inputs_of(B, B, options);
        const Results whole = run(test_device(), &in);
        static const int64_t arbitrary[] = { 0, 1, 8, 40, 41, 72, N };
        int64_t all[N + 1];
        for (int64_t i = 0; i <= N; i++)
            all[i] = i;
        const Results parts = run_parts(&in, arbitrary, 6, false);
        const Results positions = run_parts(&in, all, N, false);
        assert_same(&parts, &whole);
        assert_same(&positions, &whole);
        tape_free(parts.tape);
        tape_free(positions.tape);
        tape_free(whole.tape);
    }
}

TEST(packed_sequences_equal_separate_ones)
{
    static const int32_t offsets[] = { 0, 20, 21, 50, N };
    static const int64_t cuts[] = { 0, 20, 21, 50, N };
    EACH_KIND(kind)
    {
        Options options = kind;
        Inputs in = inputs_of(1, 4, options);
        const Results separate = run_parts(&in, cuts, 4, true);
        Results packed = variables_of(test_device(), &in);
        options.offsets = tape_input_i32(packed.tape, offsets, shape(5));
        options.log_decay = packed.x[LOG_DECAY];
        options.state = packed.x[STATE];
        packed.out = op_causal_linear_attention(packed.tape, packed.x[QUERY], packed.x[KEY],
                                                packed.x[VALUE], options, &packed.final_state);
        packed = finish(packed);
        assert_same(&packed, &separate);
        tape_free(packed.tape);
        tape_free(separate.tape);
    }
}

/* The state after the last position is the state after the last valid one, and nothing reaches the
 * keys, values and decays of masked positions. */
TEST(masked_positions_neither_decay_nor_add)
{
    static const int32_t lengths[B] = { 13, N };
    EACH_KIND(kind)
    {
        Options options = kind;
        const Inputs in = inputs_of(B, B, options);
        Results r = variables_of(test_device(), &in);
        Tensor *first[STATE], *after;
        for (int i = 0; i < STATE; i++)
            first[i] = op_slice(r.tape, r.x[i], 1, 0, lengths[0]);
        options.state = r.x[STATE];
        options.log_decay = first[LOG_DECAY];
        op_causal_linear_attention(r.tape, first[QUERY], first[KEY], first[VALUE], options, &after);
        const Real *expected = test_values(after);
        options.log_decay = r.x[LOG_DECAY];
        options.key_lengths = tape_input_i32(r.tape, lengths, shape(B));
        r.out = op_causal_linear_attention(r.tape, r.x[QUERY], r.x[KEY], r.x[VALUE], options,
                                           &r.final_state);
        r = finish(r);
        assert_close(test_values(r.final_state), expected, tensor_count(after) / B,
                     GATES_TOLERANCE);
        for (int i = KEY; i <= LOG_DECAY; i++) {
            const int64_t row = tensor_count(r.x[i]) / (B * N);
            const Real *gradient = test_values(tensor_gradient(r.x[i]));
            assert_identical(gradient + lengths[0] * row, test_zeros((N - lengths[0]) * row),
                             (N - lengths[0]) * row);
        }
        tape_free(r.tape);
    }
}

/* ------------------------------------------------------------------------------- extreme decays */

TEST(a_log_decay_of_0_is_none)
{
    EACH_KIND(kind)
    {
        Options options = kind;
        Inputs in = inputs_of(B, B, options);
        memset(in.values[LOG_DECAY], 0, B * N * H * sizeof(Real));
        const Results decayed = run(test_device(), &in);
        Results none = variables_of(test_device(), &in);
        options.state = none.x[STATE];
        none.out = op_causal_linear_attention(none.tape, none.x[QUERY], none.x[KEY], none.x[VALUE],
                                              options, &none.final_state);
        none = finish(none);
        assert_close(test_values(decayed.out), test_values(none.out), ROWS * M, GATES_TOLERANCE);
        assert_close(test_values(decayed.final_state), test_values(none.final_state),
                     tensor_count(none.final_state), GATES_TOLERANCE);
        assert_same_inputs(&decayed, &none, LOG_DECAY);
        tape_free(decayed.tape);
        tape_free(none.tape);
    }
}

/* At positions 0, 20 and 50, as sequences packed with states of 0 */
TEST(a_log_decay_of_minus_infinity_restarts)
{
    static const int32_t offsets[] = { 0, 20, 50, N };
    EACH_KIND(kind)
    {
        Options options = kind;
        Inputs in = inputs_of(1, 1, options), apart = inputs_of(1, 3, options);
        for (int64_t k = 0; k < 3 * H; k++)
            in.values[LOG_DECAY][offsets[k / H] * H + k % H] = -(Real)INFINITY;
        memset(apart.values[STATE], 0, (size_t)shape_count(shape_of(&apart, STATE)) * sizeof(Real));
        Results one = run(test_device(), &in), packed = variables_of(test_device(), &apart);
        options.offsets = tape_input_i32(packed.tape, offsets, shape(4));
        options.log_decay = packed.x[LOG_DECAY];
        options.state = packed.x[STATE];
        packed.out = op_causal_linear_attention(packed.tape, packed.x[QUERY], packed.x[KEY],
                                                packed.x[VALUE], options, &packed.final_state);
        packed.final_state = op_slice(packed.tape, packed.final_state, 0, 2, 1);
        packed = finish(packed);
        assert_same_inputs(&one, &packed, STATE);
        assert_close(test_values(one.out), test_values(packed.out), N * H * M, GATES_TOLERANCE);
        assert_close(test_values(one.final_state), test_values(packed.final_state),
                     tensor_count(one.final_state), GATES_TOLERANCE);
        assert_close(test_values(tensor_gradient(one.x[STATE])),
                     test_zeros(tensor_count(one.x[STATE])), tensor_count(one.x[STATE]), 0);
        tape_free(one.tape);
        tape_free(packed.tape);
    }
}

/* --------------------------------------------------------------------------------------- misuse */

TEST(misuse_raises)
{
#define ATTEND(...) op_causal_linear_attention(tape, x, x, x, (Options){ __VA_ARGS__ }, NULL)
    Tape *tape = tape_new(test_device());
    Tensor *x = tape_input(tape, test_normal(1, 60), shape(2, 5, 2, 3));
    assert_raises("op_causal_linear_attention: log_decay is [2,5], expected [2,5,2]: one per "
                  "position and head",
                  ATTEND(.log_decay = tape_input(tape, test_zeros(10), shape(2, 5))));
    assert_raises("op_causal_linear_attention: log_decay is [3], expected [2]: one per head",
                  ATTEND(.log_decay = tape_input(tape, test_zeros(3), shape(3))));
    assert_raises("op_causal_linear_attention: log_decay has dtype int32, expected Real",
                  ATTEND(.log_decay = tape_input_i32(tape, (int32_t[20]){ 0 }, shape(2, 5, 2))));
    assert_raises(
        "op_causal_linear_attention: state is [2,2,3,4], expected [2,2,3,3]: [sequences, "
        "H, D, M]",
        ATTEND(.unnormalized = true, .state = tape_input(tape, test_zeros(48), shape(2, 2, 3, 4))));
    assert_raises("op_causal_linear_attention: state is [2,2,3,3], expected [2,2,3,4]: [sequences, "
                  "H, D, M + 1]",
                  ATTEND(.state = tape_input(tape, test_zeros(36), shape(2, 2, 3, 3))));
    if (!device_is_cuda(test_device())) {
        Real *positive = test_zeros(20);
        positive[7] = (Real)0.5;
        assert_raises("op_causal_linear_attention: log_decay[7] is 0.5, expected 0 or less",
                      ATTEND(.log_decay = tape_input(tape, positive, shape(2, 5, 2))));
    }
    tape_free(tape);
}

TEST(a_log_decay_in_bf16_raises)
{
    if (!test_has_bf16())
        return;
    Tape *tape = tape_new(test_device());
    tape_set_precision(tape, PRECISION_BF16);
    Tensor *x = tape_input(tape, test_normal(1, 60), shape(2, 5, 2, 3));
    Tensor *decay = op_cast(tape, tape_input(tape, test_zeros(20), shape(2, 5, 2)), TENSOR_BF16);
    assert_raises(
        "op_causal_linear_attention: log_decay is stored in bf16, expected type Real; see op_cast",
        ATTEND(.log_decay = decay));
    tape_free(tape);
}

/* --------------------------------------------------------------------------------------- layers */

enum { WIDTH = 12, HEADS = 3, LENGTH = 11, BATCH = 2 };
#define FIELDS(...)                                                                                \
    {                                                                                              \
        .heads = HEADS, .head_dim = WIDTH / HEADS, __VA_ARGS__                                     \
    }
#define CONFIG(...) ((TestConfig)FIELDS(__VA_ARGS__))
static const AttentionOptions all_keys = { 0 };

static const TestConfig configs[] = {
    FIELDS(.decay = DECAY_CONSTANT),
    FIELDS(.decay = DECAY_LEARNED, .unnormalized = true, .features = FEATURE_MAP_IDENTITY,
           .convolution = 4, .output_gate = true),
    FIELDS(.unnormalized = true),
    FIELDS(.attention = KIND_DELTA_RULE),
    FIELDS(.attention = KIND_DELTA_RULE, .decay = DECAY_LEARNED, .max_beta = 2, .convolution = 3,
           .output_gate = true),
    FIELDS(.attention = KIND_DELTA_RULE, .decay = DECAY_CONSTANT),
    FIELDS(.attention = KIND_GATED_LINEAR),
    FIELDS(.attention = KIND_GATED_LINEAR, .decay = DECAY_LEARNED, .convolution = 4,
           .output_gate = true),
    FIELDS(.attention = KIND_DELTA_RULE, .decay_rank = 2, .output_gate = true),
    FIELDS(.attention = KIND_CAUSAL_SOFTMAX, .decay = DECAY_LEARNED),
    FIELDS(.attention = KIND_CAUSAL_SOFTMAX, .decay = DECAY_CONSTANT),
};
enum { CONFIGS = sizeof configs / sizeof *configs };

static Tensor *layer_input(Tape *tape)
{
    return tape_variable(tape, test_normal(9, BATCH * LENGTH * WIDTH), shape(BATCH, LENGTH, WIDTH));
}

static Tensor *weight(Params *params, const char *name)
{
    Tensor *found = params_find(params, name);
    ck_assert_msg(found != NULL, "there is no weight %s", name);
    return found;
}

/* x W^T + b with the weights a.NAME.weight and a.NAME.bias */
static Tensor *project(Tape *tape, Params *params, const char *name, Tensor *x)
{
    char w[32], b[32];
    snprintf(w, sizeof w, "a.%s.weight", name);
    snprintf(b, sizeof b, "a.%s.bias", name);
    return op_linear(tape, x, weight(params, w), weight(params, b));
}

/* Head h's rate falls from 1/32 to 1/512 in equal ratios; see DecayKind. */
static Tensor *log_decay_of(Tape *tape, Params *params, DecayKind decay, Tensor *x)
{
    Real rates[HEADS];
    for (int h = 0; h < HEADS; h++)
        rates[h] = (Real)(decay == DECAY_CONSTANT ? -pow(16, -h / (HEADS - 1.)) / 32
                                                  : log(expm1(pow(16, -h / (HEADS - 1.)) / 32)));
    Tensor *constant = tape_input(tape, rates, shape(HEADS));
    if (decay == DECAY_CONSTANT)
        return op_broadcast_to(tape, constant, shape(BATCH, LENGTH, HEADS));
    Tensor *z = op_add(tape, project(tape, params, "decay", x), constant);
    return op_scale(tape, op_softplus(tape, z), -1);
}

/* Gated linear attention with the decay of its paper, and one per head */
static Tensor *mix_by_keys(Tape *tape, Params *params, Tensor *log_decay, Tensor *x, Tensor **qkv)
{
    const Shape heads = qkv[0]->shape;
    Tensor *low = op_linear(tape, x, weight(params, "a.decay.down.weight"), NULL);
    Tensor *l =
        op_scale(tape, op_log_sigmoid(tape, project(tape, params, "decay.up", low)), 1. / 16);
    l = op_reshape(tape, l, heads);
    if (log_decay)
        l = op_add(tape, l, op_reshape(tape, log_decay, shape(BATCH, LENGTH, HEADS, 1)));
    Tensor *q = op_scale(tape, qkv[0], 1 / sqrt(WIDTH / HEADS));
    return op_gated_linear_attention(tape, q, qkv[1], qkv[2], l, (GatedLinearAttentionOptions){ 0 },
                                     NULL);
}

/* Key dimension d's rate falls from 1/2 to 1/1024 in equal ratios; see DeltaRuleConfig. */
static Tensor *key_decays_of(Tape *tape, Params *params, Tensor *x)
{
    enum { SIZE = WIDTH / HEADS };
    Real constants[SIZE];
    for (int d = 0; d < SIZE; d++)
        constants[d] = (Real)log(expm1(pow(512, -d / (SIZE - 1.)) / 2));
    Tensor *low = op_linear(tape, x, weight(params, "a.decay.down.weight"), NULL);
    Tensor *z =
        op_reshape(tape, project(tape, params, "decay.up", low), shape(BATCH, LENGTH, HEADS, SIZE));
    z = op_softplus(tape, op_add(tape, z, tape_input(tape, constants, shape(SIZE))));
    Tensor *rate = op_exp(tape, weight(params, "a.decay.log_rate"));
    return op_scale(tape, op_multiply(tape, z, op_reshape(tape, rate, shape(HEADS, 1))), -1);
}

/* The mixed positions, [BATCH, LENGTH, HEADS, D], of packed queries, keys and values */
static Tensor *mix(Tape *tape, Params *params, const TestConfig *c, Tensor *x, Tensor **qkv)
{
    Tensor *log_decay = c->decay        ? log_decay_of(tape, params, c->decay, x)
                        : c->decay_rank ? key_decays_of(tape, params, x)
                                        : NULL;
    if (c->attention == KIND_CAUSAL_SOFTMAX)
        return op_causal_softmax_attention(tape, qkv[0], qkv[1], qkv[2],
                                           (SoftmaxAttentionOptions){ .log_decay = log_decay });
    if (c->attention == KIND_GATED_LINEAR)
        return mix_by_keys(tape, params, log_decay, x, qkv);
    if (c->attention != KIND_DELTA_RULE)
        return op_causal_linear_attention(tape, qkv[0], qkv[1], qkv[2],
                                          (Options){ .features = (FeatureMap)c->features,
                                                     .eps = 1e-6,
                                                     .unnormalized = c->unnormalized,
                                                     .log_decay = log_decay },
                                          NULL);
    Tensor *beta = op_scale(tape, op_sigmoid(tape, project(tape, params, "beta", x)),
                            c->max_beta != 0 ? c->max_beta : 1);
    Tensor *q = op_scale(tape, op_l2_normalize(tape, qkv[0], 1e-6), 1 / sqrt(WIDTH / HEADS));
    return op_delta_rule(tape, q, op_l2_normalize(tape, qkv[1], 1e-6), qkv[2], beta,
                         (DeltaRuleOptions){ .log_decay = log_decay }, NULL);
}

static Tensor *compose(Tape *tape, Params *params, const TestConfig *c, Tensor *x)
{
    static const char *const parts[] = { "query", "key", "value" };
    const Shape heads = shape(BATCH, LENGTH, HEADS, WIDTH / HEADS);
    Tensor *qkv[3];
    for (int i = 0; i < 3; i++)
        qkv[i] = project(tape, params, parts[i], x);
    if (c->convolution) {
        Tensor *joined = op_causal_convolution(
            tape, op_concat(tape, qkv, 3, 2), weight(params, "a.convolution.weight"),
            weight(params, "a.convolution.bias"), (CausalConvolutionOptions){ 0 }, NULL);
        op_split(tape, op_silu(tape, joined), 2, 3, qkv);
    }
    for (int i = 0; i < 3; i++)
        qkv[i] = op_reshape(tape, qkv[i], heads);
    Tensor *out = mix(tape, params, c, x, qkv);
    if (c->unnormalized || c->attention == KIND_DELTA_RULE || c->attention == KIND_GATED_LINEAR)
        out = op_rms_norm(tape, out, weight(params, "a.norm.weight"), 1e-6);
    out = op_reshape(tape, out, x->shape);
    if (c->output_gate)
        out = op_multiply(tape, out, op_silu(tape, project(tape, params, "gate", x)));
    return project(tape, params, "out", out);
}

TEST(a_layer_is_made_of_its_operations)
{
    for (int i = 0; i < CONFIGS; i++) {
        Tape *tape = tape_new(test_device());
        Params *params = params_new(test_device(), 5);
        const Attention attention = nn_attention(params, "a", test_config(params, configs[i]));
        const TestConfig *c = &configs[i];
        ck_assert_int_eq(params_count(params), 8 + 2 * (c->decay == DECAY_LEARNED) +
                                                   3 * (c->attention == KIND_DELTA_RULE) +
                                                   4 * (c->attention == KIND_GATED_LINEAR) +
                                                   4 * (c->decay_rank > 0) + c->unnormalized +
                                                   2 * (c->convolution > 0) + 2 * c->output_gate);
        Tensor *x = layer_input(tape), *out = nn_attention_forward(tape, &attention, x, all_keys);
        assert_close(test_values(out), test_values(compose(tape, params, c, x)), tensor_count(x),
                     GATES_TOLERANCE);
        tape_free(tape);
        params_free(params);
    }
}

/* A bias of softmax attention's keys adds the same to all scores of a query: no gradient. */
TEST(gradients_reach_every_weight)
{
    for (int i = 0; i < CONFIGS; i++) {
        Tape *tape = tape_new(test_device());
        Params *params = params_new(test_device(), 5);
        const Attention attention = nn_attention(params, "a", test_config(params, configs[i]));
        Tensor *x = layer_input(tape), *out = nn_attention_forward(tape, &attention, x, all_keys);
        tape_backward(tape, op_sum(tape, op_square(tape, out), ALL_AXES));
        for (int w = 0; w < params_count(params); w++) {
            Tensor *of = params_at(params, w);
            const Real *gradient = test_values(tensor_gradient(of));
            double sum = 0;
            for (int64_t k = 0; k < tensor_count(of); k++)
                sum += fabs((double)gradient[k]);
            if (configs[i].attention != KIND_CAUSAL_SOFTMAX || !strstr(of->name, "key.bias"))
                ck_assert_msg(sum > 1e-6, "config %d: %s gets gradients of sum %g", i, of->name,
                              sum);
        }
        tape_free(tape);
        params_free(params);
    }
}

/* Two gradients are ill-conditioned, since the norm divides by what may be near 0. In float32,
 * inputs changed by about a 512th, as bf16 rounds them, change configs[1]'s by 0.2 of the largest,
 * configs[7]'s by 0.05, the others' by at most 0.04. */
TEST(layers_compute_in_bf16)
{
    for (int i = 0; test_has_bf16() && i < CONFIGS; i++) {
        Params *params = params_new(test_device(), 5);
        const Attention attention = nn_attention(params, "a", test_config(params, configs[i]));
        const int64_t count = tensor_count(params_flat_gradients(params));
        Real *out[2], *gradients[2];
        for (int bf16 = 0; bf16 < 2; bf16++) {
            Tape *tape = tape_new(test_device());
            tape_set_precision(tape, bf16 ? PRECISION_BF16 : PRECISION_FLOAT32);
            Tensor *result = nn_attention_forward(tape, &attention, layer_input(tape), all_keys);
            out[bf16] = test_values(result);
            tape_backward(tape, op_sum(tape, op_square(tape, result), ALL_AXES));
            gradients[bf16] = test_values(params_flat_gradients(params));
            params_zero_gradients(params);
            tape_free(tape);
        }
        assert_close(out[1], out[0], BATCH * LENGTH * WIDTH, 5e-2);
        assert_close(gradients[1], gradients[0], count, i == 1 ? 0.2 : i == 7 ? 0.1 : 0.02);
        params_free(params);
    }
}

/* Three layers of the delta rule, then one of softmax attention, each with the gates of its kind */
TEST(layers_may_differ)
{
    const TestConfig config =
        CONFIG(.layers = 4, .attention = KIND_DELTA_RULE, .decay = DECAY_LEARNED, .pre_norm = true,
               .no_final_norm = true, .softmax_layer = 3);
    Tape *tape = tape_new(test_device());
    Params *params = params_new(test_device(), 5), *loaded = params_new(test_device(), 6);
    const Transformer transformer = nn_transformer(params, "t", test_config(params, config));
    const Transformer other = nn_transformer(loaded, "t", test_config(loaded, config));
    weight(params, "t.layers.2.attention.beta.weight");
    weight(params, "t.layers.2.attention.decay.bias");
    weight(params, "t.layers.2.attention.norm.weight");
    ck_assert(params_find(params, "t.layers.3.attention.beta.weight") == NULL);
    ck_assert(params_find(params, "t.layers.3.attention.decay.weight") == NULL);
    Tensor *x = layer_input(tape), *expected = x;
    for (int i = 0; i < 4; i++)
        expected = nn_transformer_layer_forward(tape, &transformer.layer[i], expected, all_keys);
    Tensor *out = nn_transformer_forward(tape, &transformer, x, all_keys);
    assert_identical(test_values(out), test_values(expected), tensor_count(x));
    begin_folder("layers.safetensors");
    assert_ok(params_save(params, path));
    assert_ok(params_load(loaded, path));
    end_folder();
    assert_identical_weights(params, loaded);
    assert_identical(test_values(nn_transformer_forward(tape, &other, x, all_keys)),
                     test_values(out), tensor_count(x));
    tape_free(tape);
    params_free(params);
    params_free(loaded);
}

TEST(invalid_gates_raise)
{
    Params *params = params_new(test_device(), 5);
#define GATED(...) nn_gated_attention(params, (GatedConfig){ __VA_ARGS__ })
#define INNER(name)                                                                                \
    "nn_gated_attention: inner is " name " attention, expected causal linear, gated linear or "    \
    "causal softmax attention, or the delta rule"
    assert_raises("nn_gated_attention: decay is 7, expected DECAY_NONE to DECAY_LEARNED",
                  GATED(.decay = (DecayKind)7));
    assert_raises("nn_gated_attention: convolution is 1, expected 2 or more taps, or 0: none",
                  GATED(.convolution = 1));
    assert_raises("nn_gated_attention: convolution is -1, expected 1 to 1048576, or 0 for the "
                  "default",
                  GATED(.convolution = -1));
    assert_raises(INNER("softmax"), GATED(.inner = nn_softmax_attention(params)));
    assert_raises(INNER("causal LSH"),
                  GATED(.inner = nn_causal_lsh_attention(params, (LshConfig){ 0 })));
    assert_raises("nn_delta_rule_attention: max_beta is 3, expected 0 < max_beta <= 2",
                  nn_delta_rule_attention(params, (DeltaRuleConfig){ .max_beta = 3 }));
    assert_raises("nn_delta_rule_attention: max_beta is -1, expected 0 < max_beta <= 2",
                  nn_delta_rule_attention(params, (DeltaRuleConfig){ .max_beta = -1 }));
    assert_raises("nn_delta_rule_attention: decay_rank is -1, expected 1 to 1048576, or 0 for the "
                  "default",
                  nn_delta_rule_attention(params, (DeltaRuleConfig){ .decay_rank = -1 }));
    ck_assert_int_eq(params_count(params), 0);
    params_free(params);
}

TEST(two_decays_raise)
{
    Tape *tape = tape_new(test_device());
    Params *params = params_new(test_device(), 5);
    const TestConfig both =
        CONFIG(.attention = KIND_DELTA_RULE, .decay = DECAY_CONSTANT, .decay_rank = 2);
    const Attention attention = nn_attention(params, "a", test_config(params, both));
    assert_raises("nn_delta_rule_attention: decay_rank is 2, and nn_gated_attention has a decay "
                  "too, expected one of the two",
                  nn_attention_forward(tape, &attention, layer_input(tape), all_keys));
    tape_free(tape);
    params_free(params);
}

int main(void)
{
    return test_main("gates", NULL, NULL);
}
