/* One sequence over several ranks, which are threads here: the states before each rank's positions,
 * attention and a transformer, against one process that has all positions. */
#include "tests/kinds.h"
#include "tests/support.h"
#include "tests/thread_ranks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double SEQUENCE_TOLERANCE = sizeof(Real) == 8 ? 1e-12 : 2e-5;

/* --------------------------------------------------------------------------------- the merge alone
 * Each rank's loss is <before_r, weights_r>. */
enum { B = 2, H = 3, D = 4, C = 5, HEADS = B * H, SIZE = D * C, STATE = HEADS * SIZE, RANKS = 4 };
enum {
    NONE,
    DECAYS,
    MATRICES,
    TRANSITIONS
}; /* what a rank's positions do to a state before them */
static const int transition_sizes[] = { 0, HEADS, HEADS *D *D };

typedef struct Merge {
    int ranks, transitions, size; /* size: elements of a rank's transitions */
    int unused;                   /* this rank's loss does not depend on the result; -1: none */
    const Real *state, *transition, *weights; /* [ranks, ...] */
    Real *before[RANKS], *dstate[RANKS], *dtransition[RANKS];
    DistTraffic traffic[RANKS][2]; /* after the forward and the backward pass */
} Merge;

static Merge merge_new(int ranks, int transitions)
{
    const int size = transition_sizes[transitions];
    Real *transition = test_normal(2, RANKS * HEADS * D * D);
    for (int i = 0; transitions == DECAYS && i < RANKS * HEADS; i++)
        transition[i] = -(Real)fabs((double)transition[i]);
    return (Merge){ .ranks = ranks,
                    .transitions = transitions,
                    .size = size,
                    .unused = -1,
                    .state = test_normal(1, RANKS * STATE),
                    .transition = transition,
                    .weights = test_normal(3, RANKS * STATE) };
}

static void merge_on_rank(void *context)
{
    Merge *m = context;
    const int r = dist_rank();
    dist_sequence(m->ranks);
    Tape *tape = tape_new(rank_device());
    Tensor *state = tape_variable(tape, m->state + r * STATE, shape(B, H, D, C));
    Tensor *transition = NULL;
    if (m->transitions)
        transition = tape_variable(tape, m->transition + r * m->size,
                                   m->transitions == DECAYS ? shape(B, H) : shape(B, H, D, D));
    Tensor *weights = tape_input(tape, m->weights + r * STATE, shape(B, H, D, C));
    Tensor *before = tensor_keep(dist_states_before(tape, state, transition));
    m->traffic[r][0] = dist_traffic();
    Tensor *used = r == m->unused ? state : before;
    Tensor *loss = op_sum(tape, op_multiply(tape, used, weights), ALL_AXES);
    tape_backward(tape, loss);
    m->traffic[r][1] = dist_traffic();
    m->before[r] = test_values(before);
    m->dstate[r] = test_values(tensor_gradient(state));
    if (transition)
        m->dtransition[r] = test_values(tensor_gradient(transition));
    tape_free(tape);
}

/* An element of A_r */
static double transition_of(const Merge *m, int r, int head, int i, int j)
{
    const Real *A = m->transition + r * m->size;
    if (m->transitions == MATRICES)
        return (double)A[(head * D + i) * D + j];
    return i != j ? 0 : m->transitions == DECAYS ? exp((double)A[head]) : 1;
}

/* to [D, C] <- A_{r-1} .. A_{j+1} S_j, what rank j's state is before rank r */
static void carry(const Merge *m, double *to, int j, int r, int head)
{
    for (int k = 0; k < SIZE; k++)
        to[k] = (double)m->state[j * STATE + head * SIZE + k];
    for (int t = j + 1; t < r; t++) {
        double product[SIZE] = { 0 };
        for (int k = 0; k < SIZE * D; k++)
            product[k / D] +=
                transition_of(m, t, head, k / D / C, k % D) * to[k % D * C + k / D % C];
        memcpy(to, product, sizeof product);
    }
}

/* to [D, C] <- A_{j+1}^T .. A_{r-1}^T w_r, what rank r's loss contributes to rank j's state; 0 if
 * it does not depend on the result */
static void carry_back(const Merge *m, double *to, int j, int r, int head)
{
    for (int k = 0; k < SIZE; k++)
        to[k] = r == m->unused ? 0 : (double)m->weights[r * STATE + head * SIZE + k];
    for (int t = r - 1; t > j; t--) {
        double product[SIZE] = { 0 };
        for (int k = 0; k < SIZE * D; k++)
            product[k / D] +=
                transition_of(m, t, head, k % D, k / D / C) * to[k % D * C + k / D % C];
        memcpy(to, product, sizeof product);
    }
}

/* dtransition [D, D] of rank i and a head, or one number, by all pairs of ranks before and after */
static void add_transition_gradients(const Merge *m, Real *dtransition, int i, int head)
{
    double dA[D * D] = { 0 }, sum = 0, before[SIZE], after[SIZE];
    for (int j = 0; j < i; j++)
        for (int r = i + 1; r < m->ranks; r++) {
            carry(m, before, j, i, head);
            carry_back(m, after, i, r, head);
            for (int k = 0; k < D * D * C; k++)
                dA[k / C] += after[k / C / D * C + k % C] * before[k / C % D * C + k % C];
        }
    for (int k = 0; k < D * D; k++)
        sum += dA[k] * transition_of(m, i, head, k / D, k / D) * (k / D == k % D);
    if (m->transitions == DECAYS)
        dtransition[head] = (Real)sum;
    for (int k = 0; m->transitions == MATRICES && k < D * D; k++)
        dtransition[head * D * D + k] = (Real)dA[k];
}

/* By the definition, pair by pair of ranks */
static void check_merge(const Merge *m)
{
    const double tolerance = sizeof(Real) == 8 ? 1e-13 : 1e-5;
    for (int r = 0; r < m->ranks; r++) {
        Real before[STATE] = { 0 }, dstate[STATE] = { 0 }, dtransition[HEADS * D * D];
        for (int head = 0; head < HEADS; head++) {
            for (int other = 0; other < m->ranks; other++) {
                double carried[SIZE] = { 0 };
                if (other < r)
                    carry(m, carried, other, r, head);
                else if (other > r)
                    carry_back(m, carried, r, other, head);
                for (int k = 0; k < SIZE; k++)
                    (other < r ? before : dstate)[head * SIZE + k] += (Real)carried[k];
            }
            add_transition_gradients(m, dtransition, r, head);
        }
        for (int k = 0; r == m->unused && k < STATE; k++)
            dstate[k] += m->weights[r * STATE + k];
        assert_near("before", m->before[r], before, STATE, tolerance);
        assert_near("dstate", m->dstate[r], dstate, STATE, tolerance);
        if (m->transitions)
            assert_near("dtransition", m->dtransition[r], dtransition, m->size, tolerance);
    }
}

TEST(states_before_and_their_gradients_equal_the_definition)
{
    for (int ranks = 1; ranks <= RANKS; ranks++)
        for (int transitions = 0; transitions < TRANSITIONS; transitions++) {
            Merge m = merge_new(ranks, transitions);
            if (ranks == 1)
                merge_on_rank(&m);
            else
                run_ranks(ranks, merge_on_rank, &m);
            check_merge(&m);
        }
}

/* A rank whose loss does not depend on the result takes part in the backward pass: no other waits
 * for it in vain. */
TEST(a_rank_that_uses_no_state_before_takes_part)
{
    for (int unused = 0; unused < 3; unused++) {
        Merge m = merge_new(3, MATRICES);
        m.unused = unused;
        run_ranks(3, merge_on_rank, &m);
        check_merge(&m);
    }
}

/* It passes zeros, and what leaves the states of earlier ranks as they are. */
TEST(a_rank_without_positions_passes_states_on)
{
    for (int empty = 0; empty < 3; empty++)
        for (int transitions = 0; transitions < TRANSITIONS; transitions++) {
            Merge m = merge_new(3, transitions);
            memset((Real *)m.state + empty * STATE, 0, STATE * sizeof(Real));
            for (int i = 0; i < m.size; i++)
                ((Real *)m.transition)[empty * m.size + i] =
                    transitions == MATRICES && i % (D * D) % (D + 1) == 0;
            run_ranks(3, merge_on_rank, &m);
            check_merge(&m);
            for (int i = 0; i < STATE && empty == 1; i++)
                ck_assert_double_eq((double)m.before[2][i], (double)m.state[i]);
        }
}

/* A log decay of -infinity leaves nothing of earlier states, of infinite ones neither. */
static void merge_after_infinity(void *context)
{
    (void)context;
    dist_sequence(3);
    Tape *tape = tape_new(rank_device());
    const Real values[] = { (Real)INFINITY, 2, 3 }, end = (Real)-INFINITY;
    Tensor *state = tape_variable(tape, values + dist_rank(), shape(1, 1, 1, 1));
    Tensor *log_decay = tape_input(tape, &end, shape(1, 1));
    Tensor *before = tensor_keep(dist_states_before(tape, state, log_decay));
    tape_backward(tape, op_sum(tape, before, ALL_AXES));
    const double expected[] = { 0, INFINITY, 2 }, gradient[] = { 1, 1, 0 };
    ck_assert_double_eq(tensor_item(before), expected[dist_rank()]);
    ck_assert_double_eq(tensor_item(tensor_gradient(state)), gradient[dist_rank()]);
    tape_free(tape);
}

TEST(an_infinite_log_decay_ends_states)
{
    run_ranks(3, merge_after_infinity, NULL);
}

/* Rows are exchanged in multiples of 64 bytes. */
static int64_t row_bytes(int64_t elements)
{
    return (elements * (int64_t)sizeof(Real) + 63) / 64 * 64;
}

TEST(a_rank_sends_its_states_transitions_and_gradients_alone)
{
    for (int ranks = 2; ranks <= RANKS; ranks++)
        for (int transitions = 0; transitions < TRANSITIONS; transitions++) {
            Merge m = merge_new(ranks, transitions);
            run_ranks(ranks, merge_on_rank, &m);
            const int64_t forward = row_bytes(STATE + m.size);
            for (int r = 0; r < ranks; r++) {
                const DistTraffic *traffic = m.traffic[r];
                ck_assert_int_eq(traffic[0].calls, 1);
                ck_assert_int_eq(traffic[0].bytes, (ranks - 1) * forward);
                ck_assert_int_eq(traffic[1].calls, 2);
                ck_assert_int_eq(traffic[1].bytes - traffic[0].bytes,
                                 (ranks - 1) * row_bytes(STATE));
            }
        }
}

static void merge_without_recording(void *context)
{
    const Merge *m = context;
    dist_sequence(m->ranks);
    Tape *tape = tape_new(rank_device());
    tape_set_recording(tape, false);
    Tensor *state = tape_variable(tape, m->state + dist_rank() * STATE, shape(B, H, D, C));
    dist_states_before(tape, state, NULL);
    ck_assert(!tape_has_recorded(tape));
    ck_assert_int_eq(dist_traffic().calls, 1);
    tape_free(tape);
}

TEST(evaluation_exchanges_states_once)
{
    Merge m = merge_new(3, NONE);
    run_ranks(3, merge_without_recording, &m);
}

/* Finite differences of sum_r <before_r, weights_r> by each rank's state and transition, with all
 * ranks' passes. */
static double total_loss(const Merge *m)
{
    Merge copy = *m;
    run_ranks(m->ranks, merge_on_rank, &copy);
    double sum = 0;
    for (int r = 0; r < m->ranks; r++)
        sum += test_dot(copy.before[r], m->weights + r * STATE, STATE);
    return sum;
}

static void check_difference(Merge *m, Real *element, Real gradient)
{
    const double h = sizeof(Real) == 8 ? 1e-5 : 1e-2;
    const Real value = *element;
    *element = (Real)((double)value + h);
    const double above = total_loss(m);
    *element = (Real)((double)value - h);
    const double below = total_loss(m);
    *element = value;
    ck_assert_double_le(fabs((above - below) / (2 * h) - (double)gradient),
                        GRADIENT_TOLERANCE * fmax(1, fabs((double)gradient)));
}

TEST(gradients_equal_finite_differences)
{
    for (int transitions = DECAYS; transitions < TRANSITIONS; transitions++) {
        Merge m = merge_new(4, transitions);
        run_ranks(4, merge_on_rank, &m);
        Real *state = test_normal(1, RANKS * STATE), *transition = test_zeros(RANKS * m.size);
        memcpy(transition, m.transition, RANKS * (size_t)m.size * sizeof *transition);
        m.state = state;
        m.transition = transition;
        for (int r = 0; r < 4; r++)
            for (int i = 0; i < 3; i++) {
                const int k = m.size / 3 * i;
                check_difference(&m, state + r * STATE + 37 * i, m.dstate[r][37 * i]);
                check_difference(&m, transition + r * m.size + k, m.dtransition[r][k]);
            }
    }
}

/* ---------------------------------------------------------------------------------- a transformer
 * Of 2 sequences per group of ranks; the model's loss is the mean over all positions of all
 * sequences. */
enum { N = 23, HEAD = 6, WIDTH = 2 * HEAD, PER_GROUP = 2, GROUPS = 2 };
enum { COUNT = GROUPS * PER_GROUP * N * WIDTH };

typedef struct Run {
    int ranks;    /* per sequence */
    int groups;   /* of ranks */
    int parts[5]; /* rank r has the positions from parts[r] to parts[r + 1] of each sequence */
    int padding;  /* the last rank has this number of positions behind the end, of weight 0 */
    bool bf16;    /* activations and products */
    TestConfig config;
    Real *out;     /* [GROUPS PER_GROUP, N, WIDTH] */
    Real *dx;      /* likewise */
    Real *weights; /* after a step, of rank 0 */
    Real *gradients[8];
    int64_t count;
} Run;

static const double LEARNING_RATE = 1;

/* out[sequence][first + i] <- values, of positions before the end */
static void put(Real *to, const Tensor *from, int sequence, int first)
{
    const int64_t count = from->shape.size[1];
    const Real *values = test_values(from);
    for (int64_t b = 0; b < PER_GROUP; b++)
        for (int64_t i = 0; i < count && first + i < N; i++)
            memcpy(to + ((sequence + b) * N + first + i) * WIDTH, values + (b * count + i) * WIDTH,
                   WIDTH * sizeof *to);
}

/* [PER_GROUP, count, WIDTH] of the positions from first on; 7 behind the end */
static Real *take(const Real *from, int sequence, int first, int count)
{
    Real *to = test_zeros(PER_GROUP * count * WIDTH);
    for (int k = 0; k < PER_GROUP * count * WIDTH; k++) {
        const int i = first + k / WIDTH % count, b = sequence + k / WIDTH / count;
        to[k] = i < N ? from[(b * N + i) * WIDTH + k % WIDTH] : 7;
    }
    return to;
}

/* Positions of a group's sequences that have a loss: the weight of its ranks, and their share of
 * all groups' */
static int weight_of(int group)
{
    return N - 6 * group;
}

static double share_of_group(const Run *run, int group)
{
    int sum = 0;
    for (int g = 0; g < run->groups; g++)
        sum += weight_of(g);
    return (double)weight_of(group) / sum;
}

/* sum <out^2, targets> over this rank's positions / the number of all ranks', times the ranks per
 * sequence, as dist_sequence states. */
static Tensor *run_loss(Tape *tape, const Run *run, Tensor *out, int sequence, int first, int count)
{
    Real *targets = take(test_normal(11, COUNT), sequence, first, count);
    for (int k = 0; k < PER_GROUP * count * WIDTH; k++)
        if (first + k / WIDTH % count >= weight_of(sequence / PER_GROUP))
            targets[k] = 0;
    Tensor *product =
        op_multiply(tape, op_square(tape, out), tape_input(tape, targets, out->shape));
    const double positions = PER_GROUP * weight_of(sequence / PER_GROUP);
    return op_scale(tape, op_sum(tape, product, ALL_AXES), run->ranks / positions);
}

static Tensor *positions_from(Tape *tape, int first, int count)
{
    int32_t positions[2 * N];
    for (int i = 0; i < count; i++)
        positions[i] = first + i;
    return tape_input_i32(tape, positions, shape(count));
}

static void run_on_rank(void *context)
{
    Run *run = context;
    const int ranks = run->ranks, r = dist_rank() % ranks;
    const int sequence = dist_rank() / ranks * PER_GROUP;
    const int first = run->parts[r];
    const int count = run->parts[r + 1] - first + (r == ranks - 1 ? run->padding : 0);
    dist_sequence(ranks);
    ck_assert_int_eq(dist_sequence_rank(), r);
    ck_assert_int_eq(dist_sequence_ranks(), ranks);
    Params *params = params_new(rank_device(), 5);
    const Transformer model = nn_transformer(params, "model", test_config(params, run->config));
    Optimizer *optimizer = optim_sgd(params, optim_sgd_config(LEARNING_RATE));
    dist_optimizer(optimizer);
    dist_set_weight(params, weight_of(sequence / PER_GROUP));
    Tape *tape = tape_new(rank_device());
    if (run->bf16)
        tape_set_precision(tape, PRECISION_BF16);
    /* One process has all groups' sequences, one group after the other. */
    const int groups = dist_ranks() == 1 ? run->groups : 1;
    for (int g = 0; g < groups; g++) {
        const int s = sequence + g * PER_GROUP;
        tape_reset(tape);
        Tensor *x = tape_variable(tape, take(test_normal(10, COUNT), s, first, count),
                                  shape(PER_GROUP, count, WIDTH));
        const AttentionOptions options = { .positions = positions_from(tape, first, count),
                                           .states_before = ranks > 1 ? dist_states_before : NULL };
        Tensor *out = tensor_keep(nn_transformer_forward(tape, &model, x, options));
        Tensor *loss = run_loss(tape, run, out, s, first, count);
        tape_backward(tape, groups == 1 ? loss : op_scale(tape, loss, share_of_group(run, g)));
        put(run->out, out, s, first);
        put(run->dx, tensor_gradient(x), s, first);
    }
    run->count = tensor_count(params_flat_values(params));
    run->gradients[dist_rank()] = test_values(params_flat_gradients(params));
    optim_step(optimizer);
    if (dist_rank() == 0)
        run->weights = test_values(params_flat_values(params));
    tape_free(tape);
    optim_free(optimizer);
    params_free(params);
}

static Run run_new(int ranks, const int *parts, int padding, int groups, TestConfig config)
{
    Run run = { .ranks = ranks,
                .groups = groups,
                .padding = padding,
                .config = config,
                .out = test_zeros(COUNT),
                .dx = test_zeros(COUNT) };
    memcpy(run.parts, parts, (size_t)(ranks + 1) * sizeof *parts);
    run.config.layers = 2;
    run.config.heads = WIDTH / HEAD;
    run.config.head_dim = HEAD;
    run.config.feed_forward = 16;
    return run;
}

/* max |a - b| / max |b| of the ranks' mean gradient and of one process's */
static double gradient_error(const Run *run, const Run *one)
{
    Real *mean = test_zeros(one->count);
    const int ranks = run->ranks * run->groups;
    for (int r = 0; r < ranks; r++)
        for (int64_t k = 0; k < one->count; k++)
            mean[k] +=
                (Real)(share_of_group(run, r / run->ranks) / run->ranks) * run->gradients[r][k];
    return relative_error(mean, one->gradients[0], one->count);
}

static void compare_run(Run run)
{
    static const int whole[] = { 0, N };
    Run one = run_new(1, whole, 0, run.groups, run.config);
    one.config.recompute = false;
    one.bf16 = run.bf16;
    run_on_rank(&one);
    run_ranks(run.ranks * run.groups, run_on_rank, &run);
    const int64_t count = run.groups * PER_GROUP * N * WIDTH;
    const double tolerance = run.bf16 ? 0.05 : SEQUENCE_TOLERANCE;
    assert_close(run.out, one.out, count, tolerance);
    for (int64_t k = 0; k < count; k++) {
        const int group = (int)(k / (PER_GROUP * N * WIDTH));
        run.dx[k] *= (Real)(share_of_group(&run, group) / run.ranks);
    }
    assert_close(run.dx, one.dx, count, tolerance);
    ck_assert_double_le(gradient_error(&run, &one), tolerance);
    assert_near("weights", run.weights, one.weights, one.count, 10 * tolerance);
}

/* Every kind of layer: with a decay, constant or learned, and without; normalized or not, the delta
 * rule, or gated linear attention. */
static void compare_kinds(int ranks, const int *parts, int padding, int groups)
{
    for (DecayKind decay = DECAY_NONE; decay <= DECAY_LEARNED; decay++)
        for (int kind = 0; kind < 4; kind++) {
            static const TestKind kinds[] = { KIND_CAUSAL_LINEAR, KIND_CAUSAL_LINEAR,
                                              KIND_DELTA_RULE, KIND_GATED_LINEAR };
            const TestConfig config = { .attention = kinds[kind],
                                        .decay = decay,
                                        .unnormalized = kind == 1 };
            compare_run(run_new(ranks, parts, padding, groups, config));
        }
}

TEST(transformer_over_ranks_equals_one_process)
{
    compare_kinds(2, (const int[]){ 0, 12, N }, 0, 1);
    compare_kinds(3, (const int[]){ 0, 8, 16, N }, 0, 1);
    compare_kinds(4, (const int[]){ 0, 6, 12, 18, N }, 0, 1);
}

TEST(uneven_parts_equal_one_process)
{
    compare_kinds(4, (const int[]){ 0, 1, 17, 18, N }, 0, 1);
    compare_kinds(3, (const int[]){ 0, 20, 21, N }, 0, 1);
}

/* A rank behind the end of the sequence has padding, which no position attends to. */
TEST(padding_behind_the_end_changes_nothing)
{
    compare_kinds(3, (const int[]){ 0, 11, N, N }, 1, 1);
    compare_kinds(2, (const int[]){ 0, 11, N }, 5, 1);
}

TEST(groups_of_data_and_sequence_equal_one_process)
{
    compare_kinds(2, (const int[]){ 0, 9, N }, 0, 2);
}

TEST(options_of_layers_equal_one_process)
{
    const int parts[] = { 0, 5, 14, N };
    compare_run(run_new(3, parts, 0, 1, (TestConfig){ .features = FEATURES_POLYNOMIAL }));
    compare_run(run_new(3, parts, 0, 1, (TestConfig){ .features = FEATURE_MAP_SOFTPLUS }));
    compare_run(
        run_new(3, parts, 0, 1,
                (TestConfig){ .pre_norm = true, .decay = DECAY_LEARNED, .recompute = true }));
}

/* A part has at least the positions of a convolution's taps before the present. */
TEST(convolutions_and_rotary_positions_equal_one_process)
{
    const int parts[] = { 0, 3, 14, N };
    compare_run(run_new(3, parts, 0, 1, (TestConfig){ .convolution = 4, .output_gate = true }));
    compare_run(run_new(3, parts, 2, 1,
                        (TestConfig){ .attention = KIND_DELTA_RULE,
                                      .decay = DECAY_LEARNED,
                                      .convolution = 4,
                                      .recompute = true }));
    compare_run(
        run_new(3, parts, 0, 1, (TestConfig){ .attention = KIND_DELTA_RULE, .decay_rank = 2 }));
    compare_run(run_new(3, parts, 0, 1, (TestConfig){ .rotary_dims = 4, .convolution = 2 }));
}

TEST(bf16_over_ranks_equals_one_process)
{
    static const TestKind kinds[] = { KIND_CAUSAL_LINEAR, KIND_DELTA_RULE, KIND_GATED_LINEAR };
    for (int i = 0; sizeof(Real) == sizeof(float) && i < 3; i++) {
        Run run = run_new(
            3, (const int[]){ 0, 5, 14, N }, 0, 1,
            (TestConfig){ .attention = kinds[i], .decay = DECAY_LEARNED, .convolution = 4 });
        run.bf16 = true;
        compare_run(run);
    }
}

/* accelerate #4177: the outputs of shards are right, and their gradients lack what crosses
 * boundaries. */
static Tensor *states_without_gradients(Tape *tape, Tensor *state, Tensor *transition)
{
    const bool recording = tape_set_recording(tape, false);
    Tensor *before = dist_states_before(tape, state, transition);
    tape_set_recording(tape, recording);
    return before;
}

static void run_without_gradients(void *context)
{
    const Run *run = context;
    const int r = dist_rank(), first = run->parts[r], count = run->parts[r + 1] - first;
    dist_sequence(run->ranks);
    Params *params = params_new(rank_device(), 5);
    const Transformer model = nn_transformer(params, "model", test_config(params, run->config));
    Tape *tape = tape_new(rank_device());
    Tensor *x = tape_input(tape, take(test_normal(10, COUNT), 0, first, count),
                           shape(PER_GROUP, count, WIDTH));
    const AttentionOptions options = { .states_before = states_without_gradients };
    Tensor *out = nn_transformer_forward(tape, &model, x, options);
    put(run->out, out, 0, first);
    tape_backward(tape, run_loss(tape, run, out, 0, first, count));
    ((Run *)context)->gradients[r] = test_values(params_flat_gradients(params));
    tape_free(tape);
    params_free(params);
}

TEST(gradients_that_stop_at_boundaries_are_found)
{
    const TestConfig config = { .attention = KIND_CAUSAL_LINEAR, .decay = DECAY_CONSTANT };
    Run one = run_new(1, (const int[]){ 0, N }, 0, 1, config);
    Run right = run_new(3, (const int[]){ 0, 5, 14, N }, 0, 1, config), wrong = right;
    wrong.out = test_zeros(COUNT);
    run_on_rank(&one);
    run_ranks(3, run_on_rank, &right);
    run_ranks(3, run_without_gradients, &wrong);
    assert_close(wrong.out, one.out, PER_GROUP * N * WIDTH, SEQUENCE_TOLERANCE);
    ck_assert_double_le(gradient_error(&right, &one), SEQUENCE_TOLERANCE);
    ck_assert_double_ge(gradient_error(&wrong, &one), 1e-3);
}

/* --------------------------------------------------------------------------------------- misuse */
static void split_wrongly(void *context)
{
    (void)context;
    dist_sequence(2);
    dist_sequence(1);
    ck_assert_int_eq(dist_sequence_ranks(), 1);
    dist_sequence(4);
    ck_assert_int_eq(dist_sequence_ranks(), 4);
    ck_assert_int_eq(dist_sequence_rank(), dist_rank());
}

TEST(groups_may_change)
{
    run_ranks(4, split_wrongly, NULL);
    ck_assert_int_eq(dist_sequence_ranks(), 1);
    ck_assert_int_eq(dist_sequence_rank(), 0);
}

static void attend(Tape *tape, Params *params, TestConfig config, Tensor *key_lengths)
{
    config.heads = 2;
    config.head_dim = HEAD;
    const Attention attention = nn_attention(params, "attention", test_config(params, config));
    Tensor *x = tape_input(tape, test_normal(1, 2 * 3 * WIDTH), shape(2, 3, WIDTH));
    nn_attention_forward(
        tape, &attention, x,
        (AttentionOptions){ .key_lengths = key_lengths, .states_before = dist_states_before });
}

TEST(misuse_raises)
{
    Tape *tape = tape_new(test_device());
    assert_raises("dist_sequence: 0 ranks per sequence, expected a divisor of the 1 ranks",
                  dist_sequence(0));
    assert_raises("dist_sequence: 2 ranks per sequence, expected a divisor of the 1 ranks",
                  dist_sequence(2));
    Tensor *flat = tape_input(tape, test_zeros(6), shape(2, 3));
    Tensor *state = tape_input(tape, test_zeros(24), shape(1, 2, 3, 4));
    assert_raises("dist_states_before: state is [2,3], expected [B, H, D, C]",
                  dist_states_before(tape, flat, NULL));
    assert_raises(
        "dist_states_before: transition is [2,3], expected [1,2] or [1,2,3,3]: [B, H], or "
        "[B, H, D, D]",
        dist_states_before(tape, state, flat));
    tape_reset(tape);
    static const struct {
        TestConfig config;
        const char *sentence;
    } refused[] = {
        { { .attention = KIND_CAUSAL_SOFTMAX }, "causal softmax" },
        { { .attention = KIND_SOFTMAX }, "softmax" },
        { { .attention = KIND_LINEAR }, "linear" },
        { { .attention = KIND_CAUSAL_LSH }, "causal LSH" },
        { { .attention = KIND_LSH }, "LSH" },
        { { .attention = KIND_CAUSAL_SOFTMAX, .convolution = 2 }, "causal softmax" },
    };
    for (int i = 0; i < (int)(sizeof refused / sizeof *refused); i++) {
        char sentence[200];
        snprintf(sentence, sizeof sentence,
                 "nn_attention: states_before with %s attention, expected a kind that has a state "
                 "and no cache, such as causal linear attention",
                 refused[i].sentence);
        Params *params = params_new(test_device(), 1);
        assert_raises(sentence, attend(tape, params, refused[i].config, NULL));
        params_free(params);
        tape_reset(tape);
    }
    Params *params = params_new(test_device(), 1);
    Tensor *key_lengths = tape_input_i32(tape, (const int32_t[]){ 1, 3 }, shape(2));
    assert_raises(
        "nn_attention: states_before with key_lengths, expected NULL: positions of other "
        "processes follow",
        attend(tape, params, (TestConfig){ .attention = KIND_CAUSAL_LINEAR }, key_lengths));
    params_free(params);
    params = params_new(test_device(), 1);
    assert_raises(
        "nn_attention: states_before: 3 positions, expected at least 4: the convolution's "
        "taps - 1",
        attend(tape, params, (TestConfig){ .convolution = 5 }, NULL));
    params_free(params);
    params = params_new(test_device(), 1);
    assert_raises(
        "nn_rotary_attention: states_before without positions, expected those of x in the whole "
        "sequence",
        attend(tape, params, (TestConfig){ .rotary_dims = 2 }, NULL));
    params_free(params);
    tape_reset(tape);
    Tensor *key = tape_input(tape, test_zeros(24), shape(1, 3, 2, 4));
    state = tape_input(tape, test_zeros(40), shape(1, 2, 4, 5));
    assert_raises(
        "op_causal_linear_state: state: expected NULL: a state of one sequence each, "
        "from zeros",
        op_causal_linear_state(tape, key, key, (CausalLinearAttentionOptions){ .state = state }));
    assert_raises("op_causal_linear_state: log_decay is [1,2,4,5], expected [1,3,2]: one per "
                  "position and head",
                  op_causal_linear_state(tape, key, key,
                                         (CausalLinearAttentionOptions){ .log_decay = state }));
    tape_free(tape);
}

int main(void)
{
    return test_main("sequence_parallel", make_rank_devices, NULL);
}
