/* The gradient of causal linear attention's log decay against its definition in double, where the
 * past fades fast or slowly, with states, masked and packed; drift of a weak decay's state.
 * LONG_SEQUENCES=1 adds sequences of 4096 to 65 536 positions, PRINT_ERRORS=1 prints the errors. */
#include "tests/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef TAPEGRAD_DOUBLE
#define DECAY_ELEMENT_TOLERANCE 1e-12
#define DECAY_SUM_TOLERANCE 1e-11 /* CUDA sums per position in Real */
#define STATE_TOLERANCE 1e-10
#else
#define DECAY_ELEMENT_TOLERANCE 2e-5
#define DECAY_SUM_TOLERANCE 1e-5
#define STATE_TOLERANCE 1e-6 /* of sums in double */
#endif

/* Every head has log decays of another size */
static const double mean_log_decay[] = { -0.001, -0.02, -0.5, -5, -20, -60 };
enum { DECAYS = sizeof mean_log_decay / sizeof *mean_log_decay };

typedef struct DecayCase {
    int64_t N, D, M;
    bool unnormalized, constant, states, masked, packed, state_alone;
    AttentionForm form;
} DecayCase;

enum { QUERY, KEY, VALUE, LOG_DECAY, STATE, INPUTS };

static int64_t columns_of(const DecayCase *c)
{
    return c->M + !c->unnormalized;
}

/* Sizes of normal random values */
static Real *positive_values(uint64_t stream, int64_t count)
{
    Real *x = test_normal(stream, count);
    for (int64_t k = 0; k < count; k++)
        x[k] = (Real)fabs((double)x[k]);
    return x;
}

/* [N, DECAYS], or constant [DECAYS]; else random, and some are -infinity */
static Real *log_decays_of(const DecayCase *c)
{
    const int64_t rows = c->constant ? 1 : c->N;
    Real *l = positive_values(31, rows * DECAYS);
    for (int64_t k = 0; k < rows * DECAYS; k++)
        l[k] = (Real)(mean_log_decay[k % DECAYS] * (c->constant ? 1 : 1.25 * (double)l[k]));
    for (int64_t k = 3 * DECAYS; k < rows * DECAYS; k += 97 * DECAYS + 1)
        l[k] = -(Real)INFINITY;
    return l;
}

/* The operands of a head of one sequence, positions [begin, end), in double */
typedef struct Head {
    const DecayCase *c;
    const Real *x[INPUTS], *dout, *dfinal_state; /* of all heads */
    int64_t h, sequence, begin, end, keys;
} Head;

/* a or b, [D], v~ or g, [W] of position i; 0 for masked keys */
static void row_in_double(double *to, const Head *s, const Real *rows, int64_t i, int64_t columns,
                          bool mapped, bool key)
{
    for (int64_t k = 0; k < columns; k++) {
        const double x = (double)rows[(i * DECAYS + s->h) * columns + k];
        to[k] = key && i >= s->keys ? 0 : mapped ? x > 0 ? x + 1 : exp(x) : x;
    }
}

static double decay_in_double(const Head *s, int64_t i)
{
    return i >= s->keys ? 1
                        : exp((double)s->x[LOG_DECAY][(s->c->constant ? 0 : i) * DECAYS + s->h]);
}

/* T [D, W] += y w^T */
static void add_outer(double *T, const double *y, const double *w, int64_t rows, int64_t columns)
{
    for (int64_t k = 0; k < rows * columns; k++)
        T[k] += y[k / columns] * w[k % columns];
}

/* Z [positions, D, W], and dnum~ [positions, W] */
static void forward_in_double(const Head *s, double *Z, double *dnum)
{
    const DecayCase *c = s->c;
    const int64_t D = c->D, M = c->M, W = columns_of(c), first = s->sequence * DECAYS + s->h;
    const Real *state = c->states ? s->x[STATE] + first * D * W : NULL;
    double a[64], b[64], v[64], g[64];
    for (int64_t i = s->begin; i < s->end; i++, dnum += W, Z += D * W) {
        const double decay = decay_in_double(s, i);
        double num[64] = { 0 }, dden = 0;
        row_in_double(a, s, s->x[QUERY], i, D, !c->unnormalized, false);
        row_in_double(b, s, s->x[KEY], i, D, !c->unnormalized, true);
        row_in_double(v, s, s->x[VALUE], i, M, false, true);
        row_in_double(g, s, s->dout, i, M, false, false);
        v[M] = i < s->keys;
        for (int64_t k = 0; k < D * W; k++)
            Z[k] = i > s->begin ? decay * Z[k] : state ? decay * (double)state[k] : 0;
        for (int64_t k = 0; k < D * W; k++)
            num[k % W] += a[k / W] * (Z[k] + b[k / W] * v[k % W]);
        for (int64_t m = 0; m < M; m++) {
            dnum[m] = c->unnormalized ? g[m] : g[m] / (num[M] + 1e-6);
            dden -= c->unnormalized ? 0 : dnum[m] * num[m] / (num[M] + 1e-6);
        }
        if (!c->unnormalized)
            dnum[M] = dden;
        if (i + 1 == s->end)
            break;
        memcpy(Z + D * W, Z, (size_t)(D * W) * sizeof *Z);
        add_outer(Z + D * W, b, v, D, W);
    }
}

/* dl [N, DECAYS] of the head's positions */
static void log_decay_gradient_in_double(const Head *s, double *dl)
{
    const int64_t D = s->c->D, W = columns_of(s->c), count = s->end - s->begin;
    const int64_t first = s->sequence * DECAYS + s->h;
    double *Z = malloc((size_t)(count * (D + 1) * W) * sizeof *Z), *dnum = Z + count * D * W;
    double *R = calloc((size_t)(D * W), sizeof *R), a[64];
    ck_assert(Z && R);
    forward_in_double(s, Z, dnum);
    for (int64_t k = 0; s->dfinal_state && k < D * W; k++)
        R[k] = (double)s->dfinal_state[first * D * W + k];
    for (int64_t i = s->end - 1; i >= s->begin; i--) {
        double sum = 0;
        row_in_double(a, s, s->x[QUERY], i, D, !s->c->unnormalized, false);
        add_outer(R, a, dnum + (i - s->begin) * W, D, W);
        for (int64_t k = 0; k < D * W; k++) {
            sum += Z[(i - s->begin) * D * W + k] * R[k];
            R[k] *= decay_in_double(s, i);
        }
        dl[i * DECAYS + s->h] = i < s->keys ? sum : 0;
    }
    free(Z);
    free(R);
}

/* Elements against the head's largest, the head's sum against its sum of |dl|, and exact zeros */
static void assert_log_decay_gradient(const Head *s, const Real *dl, const double *expected)
{
    double largest = 0, error = 0, sum = 0, sum_error = 0, total = 0;
    for (int64_t i = s->begin; i < s->end; i++) {
        const double e = expected[i * DECAYS + s->h];
        const double d = s->c->constant ? e : (double)dl[i * DECAYS + s->h];
        largest = fmax(largest, fabs(e));
        error = fmax(error, fabs(d - e));
        sum += fabs(e);
        sum_error += d - e;
        total += e;
        if (i >= s->keys || (i == s->begin && !s->c->states) || decay_in_double(s, i) == 0)
            ck_assert_msg(d == 0, "position %d: %g, expected 0", (int)i, d);
    }
    if (s->c->constant)
        sum_error = (double)dl[s->h] - total;
    if (getenv("PRINT_ERRORS")) {
        printf("%s%s%s%s%s%s form %d N %d mean %g: element %.1e, sum %.1e\n",
               s->c->unnormalized ? "unnormalized" : "normalized",
               s->c->constant ? ", constant" : "", s->c->states ? ", states" : "",
               s->c->masked ? ", masked" : "", s->c->packed ? ", packed" : "",
               s->c->state_alone ? ", state alone" : "", s->c->form, (int)s->c->N,
               mean_log_decay[s->h], error / fmax(largest, 1e-300),
               fabs(sum_error) / fmax(sum, 1e-300));
        fflush(stdout);
        return;
    }
    ck_assert_msg(error <= DECAY_ELEMENT_TOLERANCE * largest,
                  "mean %g: an element is off by %.2g of the largest, %g", mean_log_decay[s->h],
                  error / largest, largest);
    ck_assert_msg(fabs(sum_error) <= DECAY_SUM_TOLERANCE * sum,
                  "mean %g: the sum is off by %.2g of the sum of sizes, %g", mean_log_decay[s->h],
                  fabs(sum_error) / sum, sum);
}

/* sum(out g) + sum(final_state h); either is left out if there is none */
static Tensor *loss_of(Tape *tape, const DecayCase *c, Tensor **x,
                       CausalLinearAttentionOptions options, Tensor *g, Tensor *h)
{
    Tensor *state = NULL, *out = NULL;
    if (c->state_alone)
        state = op_causal_linear_state(tape, x[KEY], x[VALUE], options);
    else
        out = op_causal_linear_attention(tape, x[QUERY], x[KEY], x[VALUE], options,
                                         h ? &state : NULL);
    Tensor *of_out = out ? op_sum(tape, op_multiply(tape, out, g), ALL_AXES) : NULL;
    Tensor *of_state = state ? op_sum(tape, op_multiply(tape, state, h), ALL_AXES) : NULL;
    return !of_out ? of_state : !of_state ? of_out : op_add(tape, of_out, of_state);
}

static void check_log_decay_gradient(DecayCase c)
{
    const int64_t sequences = c.packed ? 3 : 1, W = columns_of(&c), N = c.N;
    const int32_t offsets[] = { 0, (int32_t)(N / 3), (int32_t)(N / 3 + 1), (int32_t)N };
    const int32_t length[] = { (int32_t)(N - N / 4) };
    const Shape states = shape(sequences, DECAYS, c.D, W);
    Tape *tape = tape_new(test_device());
    Tensor *x[INPUTS] = { 0 };
    for (int i = 0; i < LOG_DECAY; i++) {
        const int64_t width = i == VALUE ? c.M : c.D;
        x[i] = tape_variable(tape, test_normal((uint64_t)i + 1, N * DECAYS * width),
                             shape(1, N, DECAYS, width));
    }
    x[LOG_DECAY] =
        tape_variable(tape, log_decays_of(&c), c.constant ? shape(DECAYS) : shape(1, N, DECAYS));
    if (c.states) /* positive, as sums of mapped keys are */
        x[STATE] = tape_variable(tape, positive_values(5, shape_count(states)), states);
    CausalLinearAttentionOptions options = { .features = c.unnormalized ? FEATURE_MAP_IDENTITY : 0,
                                             .eps = 1e-6,
                                             .unnormalized = c.unnormalized,
                                             .form = c.form,
                                             .log_decay = x[LOG_DECAY],
                                             .state = x[STATE] };
    if (c.packed)
        options.offsets = tape_input_i32(tape, offsets, shape(4));
    if (c.masked)
        options.key_lengths = tape_input_i32(tape, length, shape(1));
    const bool final = c.states || c.state_alone;
    Tensor *g = tape_input(
        tape, c.state_alone ? test_zeros(N * DECAYS * c.M) : test_normal(20, N * DECAYS * c.M),
        x[VALUE]->shape);
    Tensor *h = final ? tape_input(tape, test_normal(21, shape_count(states)), states) : NULL;
    Tensor *loss = loss_of(tape, &c, x, options, g, h);
    tape_backward(tape, loss);
    Head s = { .c = &c, .dout = test_values(g), .dfinal_state = h ? test_values(h) : NULL };
    for (int i = 0; i < INPUTS; i++)
        s.x[i] = x[i] ? test_values(x[i]) : NULL;
    const Real *dl = test_values(tensor_gradient(x[LOG_DECAY]));
    double *expected = malloc((size_t)(N * DECAYS) * sizeof *expected);
    for (; s.sequence < sequences; s.sequence++)
        for (s.h = 0; s.h < DECAYS; s.h++) {
            s.begin = c.packed ? offsets[s.sequence] : 0;
            s.end = c.packed ? offsets[s.sequence + 1] : N;
            s.keys = c.masked ? *length : s.end;
            log_decay_gradient_in_double(&s, expected);
            assert_log_decay_gradient(&s, dl, expected);
        }
    free(expected);
    tape_free(tape);
}

TEST(the_gradient_of_a_decay_has_no_cancellation)
{
    for (int k = 0; k < 2; k++) {
        const DecayCase any = { .N = 700, .D = 8, .M = 5, .unnormalized = k };
        DecayCase states = any, masked = any, packed = any, constant = any, wide = any;
        DecayCase alone = any;
        states.states = masked.states = packed.states = masked.masked = packed.packed = true;
        constant.constant = alone.state_alone = true;
        wide.D = wide.M = 32;
        check_log_decay_gradient(any);
        check_log_decay_gradient(masked);
        check_log_decay_gradient(packed);
        check_log_decay_gradient(constant);
        check_log_decay_gradient(alone);
        check_log_decay_gradient(wide);
        for (states.form = FORM_BEST; states.form <= FORM_QUADRATIC; states.form++)
            check_log_decay_gradient(states);
        if (getenv("LONG_SEQUENCES"))
            for (int64_t N = 4096; N <= 65536; N *= 4) {
                wide.N = constant.N = masked.N = N;
                constant.D = constant.M = 32;
                check_log_decay_gradient(wide);
                check_log_decay_gradient(constant);
                check_log_decay_gradient(masked);
            }
    }
}

/* A product of 100 000 rounded e^(l_i) would be off by 1e-4 to 1e-3. "plain" sums in double; a sum
 * of 100 000 terms in Real is off by 1e-5, with a decay or without. */
TEST(the_state_of_a_weak_decay_does_not_drift)
{
    enum { POSITIONS = 100000, ROWS = 4, COLUMNS = 3 };
    const Real log_decay = (Real)-1e-5;
    const double decay = exp((double)log_decay);
    Tape *tape = tape_new(test_device());
    Tensor *key = tape_input(tape, test_normal(1, POSITIONS * ROWS), shape(1, POSITIONS, 1, ROWS));
    Tensor *value =
        tape_input(tape, test_normal(2, POSITIONS * COLUMNS), shape(1, POSITIONS, 1, COLUMNS));
    const CausalLinearAttentionOptions options = {
        .features = FEATURE_MAP_IDENTITY,
        .unnormalized = true,
        .log_decay = tape_input(tape, &log_decay, shape(1)),
    };
    Tensor *state, *alone = op_causal_linear_state(tape, key, value, options);
    op_causal_linear_attention(tape, key, key, value, options, &state);
    const Real *k = test_values(key), *v = test_values(value);
    const Real *actual = test_values(state), *other = test_values(alone);
    double expected[ROWS * COLUMNS] = { 0 }, largest = 0, error = 0;
    for (int64_t i = 0; i < POSITIONS; i++)
        for (int c = 0; c < ROWS * COLUMNS; c++)
            expected[c] = decay * expected[c] +
                          (double)k[i * ROWS + c / COLUMNS] * (double)v[i * COLUMNS + c % COLUMNS];
    for (int c = 0; c < ROWS * COLUMNS; c++) {
        largest = fmax(largest, fabs(expected[c]));
        error = fmax(error, fabs((double)actual[c] - expected[c]));
        error = fmax(error, fabs((double)other[c] - expected[c]));
    }
    if (getenv("PRINT_ERRORS"))
        printf("state: %.1e\n", error / largest);
    const bool plain = !strcmp(device_name(test_device()), "plain");
    ck_assert_msg(error <= (plain ? 1 : 20) * STATE_TOLERANCE * largest,
                  "off by %.2g of the largest", error / largest);
    tape_free(tape);
}

/* -infinity is a log decay, and not what tape_check_finite searches for; NaN is. */
TEST(a_log_decay_of_minus_infinity_passes_the_search)
{
    enum { N = 5, H = 2, D = 3 };
    const Shape heads = shape(1, N, H, D);
    for (int kind = 0; kind < 4; kind++) {
        Tape *tape = tape_new(test_device());
        Real l[N * H] = { [3] = -(Real)INFINITY };
        if (kind == 3)
            l[4] = (Real)NAN;
        Tensor *x = tape_variable(tape, positive_values(1, N * H * D), heads);
        Tensor *log_decay = tape_variable(tape, l, shape(1, N, H));
        const CausalLinearAttentionOptions linear = { .log_decay = log_decay };
        const SoftmaxAttentionOptions softmax = { .log_decay = log_decay };
        tape_check_finite(tape, true);
        if (kind == 3) {
            assert_raises(
                "op_causal_softmax_attention: input 4 is [1,5,2], and its element 4 is nan",
                op_causal_softmax_attention(tape, x, x, x, softmax));
        } else {
            Tensor *out = kind == 0   ? op_causal_softmax_attention(tape, x, x, x, softmax)
                          : kind == 1 ? op_causal_linear_attention(tape, x, x, x, linear, NULL)
                                      : op_causal_linear_state(tape, x, x, linear);
            tape_backward(tape, op_sum(tape, out, ALL_AXES));
        }
        tape_free(tape);
    }
}

int main(void)
{
    return test_main("decay_gradient", NULL, NULL);
}
