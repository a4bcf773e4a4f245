/* Sequence parallelism of causal linear attention: one all-gather of states and an ordered local
 * merge (LASP-2: Sun et al. 2025, arXiv 2502.07563).
 *
 * A sequence is split over ranks 0 ... n - 1 of a group. S_r is the state [B, H, D, M + 1] of rank
 * r's positions from a zero state, d_r [B, H] the sum of their log decays. For each head
 *
 * Forward
 *     before_0 = 0      before_{j+1} = e^(d_j) before_j + S_j
 *     so before_r = sum_{j<r} e^(d_{j+1} + .. + d_{r-1}) S_j
 * Every rank gathers all S and d, and computes its own before_r.
 *
 * Backward, from g_r = dL/dbefore_r, where L is the sum of all ranks' losses
 *   S_j is in before_r for every r > j:
 *     G_j = dL/dS_j = sum_{r>j} e^(d_{j+1} + .. + d_{r-1}) g_r
 *     so G_{n-1} = 0      G_{r-1} = g_r + e^(d_r) G_r
 *   d_i is in the products of S_j and g_r for every j < i < r, each of which factors at rank i:
 *     dd_i = sum_{j<i<r} e^(d_{j+1} + .. + d_{r-1}) <g_r, S_j>
 *          = e^(d_i) <sum_{j<i} e^(d_{j+1} + .. + d_{i-1}) S_j,
 *                     sum_{r>i} e^(d_{i+1} + .. + d_{r-1}) g_r>
 *          = e^(d_i) <before_i, G_i>
 * Every rank gathers all g, and computes its own G_r and dd_r. The gathered states are not needed
 * again: it saves all d, and before_r is its output.
 *
 * Nothing depends on before_0, and G_{n-1} = 0, but each rank waits for all others: the node is
 * collective, so the tape calls its backward function even where no loss depends on its output;
 * g_r is 0 there. */
#include "distributed/internal.h"
#include "ops/kernels.h"

#include <math.h>
#include <stdlib.h>

/* The group of this rank */
static _Thread_local DistTransport sequence_group = { .ranks = 1 };

void dist_sequence(int ranks)
{
    if (ranks < 1 || dist_ranks() % ranks != 0)
        error_raise("dist_sequence: %d ranks per sequence, expected a divisor of the %d ranks",
                    ranks, dist_ranks());
    if (ranks > 1 && !dist_transport()->split)
        error_raise("dist_sequence: the transport has no split into groups");
    if (sequence_group.ranks > 1)
        sequence_group.end(sequence_group.context, 0);
    sequence_group = (DistTransport){ .ranks = 1 };
    if (ranks > 1)
        sequence_group = dist_transport()->split(dist_transport()->context, ranks);
}

int dist_sequence_rank(void)
{
    return sequence_group.rank;
}

int dist_sequence_ranks(void)
{
    return sequence_group.ranks;
}

/* What a rank sends: the states of all heads and, forward, their log decays. */
typedef struct StatesExchange {
    int64_t heads, size; /* B H; D (M + 1) */
    const Real *d;       /* [ranks, heads], or NULL: all 0 */
} StatesExchange;

/* [ranks, row] in host memory: of this rank's row [heads, size] and [heads], the states, zeros if
 * NULL, and the log decays, none if NULL, are exchanged for those of all ranks. */
static Real *exchange_states(Tape *tape, Device *device, const StatesExchange *s,
                             const Real *states, const Real *log_decay)
{
    if (device_is_capturing(device))
        tape_error(tape, "dist_states_before: this step is replayed, expected a step without "
                         "tape_replay: it exchanges states with other processes");
    const int64_t count = s->heads * s->size, row = count + (log_decay ? s->heads : 0);
    const size_t bytes = (size_t)row * sizeof(Real), state_bytes = (size_t)count * sizeof(Real);
    Real *all = memory_allocate((size_t)sequence_group.ranks * bytes);
    if (!all)
        tape_error(tape,
                   "dist_states_before: memory is exhausted: the states of %d ranks, %lld "
                   "bytes each",
                   sequence_group.ranks, (long long)bytes);
    Real *own = all + sequence_group.rank * row;
    if (states)
        device_copy_out(device, own, states, state_bytes);
    else
        memset(own, 0, state_bytes);
    if (log_decay)
        device_copy_out(device, own + count, log_decay, bytes - state_bytes);
    dist_all_gather_rows_of(&sequence_group, all, bytes);
    return all;
}

/* to <- e^d to + from, for all heads; d NULL: 0 */
static void fade_and_add_states(const StatesExchange *s, Real *to, const Real *d, const Real *from)
{
    for (int64_t k = 0; k < s->heads; k++) {
        const Real decay = d ? (Real)exp((double)d[k]) : 1;
        for (int64_t i = k * s->size; i < (k + 1) * s->size; i++)
            to[i] = decay * to[i] + from[i];
    }
}

/* dd <- e^d <before, G>, for all heads */
static void contribute_decays(const StatesExchange *s, Real *dd, const Real *before, const Real *G)
{
    for (int64_t k = 0; k < s->heads; k++) {
        double sum = 0;
        for (int64_t i = k * s->size; i < (k + 1) * s->size; i++)
            sum += (double)before[i] * (double)G[i];
        dd[k] = (Real)(exp((double)s->d[sequence_group.rank * s->heads + k]) * sum);
    }
}

/* The contribution of values in host memory to an input's gradient */
static void contribute_from_host(Node *node, Tensor *input, const Real *values)
{
    const Gradient gradient = tape_contribution(node, input);
    if (!gradient.data)
        return;
    const int64_t count = tensor_count(input);
    Tensor *scratch = tape_tensor(node->tape, input->shape);
    tensor_write(scratch, values);
    kernels_of(input)->copy_rows(gradient, count, scratch->data, count, 1, count);
    tape_scratch_free(node->tape, scratch);
}

static void states_before_backward(Node *node)
{
    const StatesExchange *s = node->attributes;
    const int64_t count = s->heads * s->size;
    Tensor *state = node->inputs[0], *log_decay = node->inputs[1];
    const int last = sequence_group.ranks - 1;
    Real *g = exchange_states(node->tape, state->device, s, tape_upstream(node, 0), NULL);
    Real *G = g + last * count; /* G_{last-1} = g_last */
    if (sequence_group.rank == last)
        memset(G, 0, (size_t)count * sizeof *G);
    for (int r = last - 1; r > sequence_group.rank; r--)
        fade_and_add_states(s, G, s->d ? s->d + r * s->heads : NULL, g + r * count);
    contribute_from_host(node, state, G);
    if (log_decay) {
        Real *before = memory_allocate((size_t)(count + s->heads) * sizeof *before);
        if (!before)
            tape_error(node->tape, "dist_states_before: memory is exhausted");
        tensor_read(node->outputs[0], before);
        contribute_decays(s, before + count, before, G);
        contribute_from_host(node, log_decay, before + count);
        free(before);
    }
    free(g);
}

static void check_states(Tape *tape, Tensor *state, Tensor *log_decay)
{
    tape_use_real(tape, "dist_states_before: state", state);
    if (state->shape.rank != 4)
        tape_error(tape, "dist_states_before: state %s, expected [B, H, D, M + 1]",
                   tensor_text(state).text);
    if (!log_decay)
        return;
    const Shape expected = shape(state->shape.size[0], state->shape.size[1]);
    tape_use_real(tape, "dist_states_before: log_decay", log_decay);
    if (!shape_equal(log_decay->shape, expected))
        tape_error(tape, "dist_states_before: log_decay %s, expected %s: [B, H]",
                   tensor_text(log_decay).text, shape_text(expected).text);
}

Tensor *dist_states_before(Tape *tape, Tensor *state, Tensor *log_decay)
{
    check_states(tape, state, log_decay);
    const int64_t *size = state->shape.size;
    StatesExchange s = { size[0] * size[1], size[2] * size[3], NULL };
    const int64_t count = s.heads * s.size, row = count + (log_decay ? s.heads : 0);
    Tensor *before = tape_tensor(tape, state->shape);
    Real *all =
        exchange_states(tape, state->device, &s, state->data, log_decay ? log_decay->data : NULL);
    if (sequence_group.rank == 0)
        memset(all, 0, (size_t)count * sizeof *all); /* else before_1 = S_0 */
    for (int r = 1; r < sequence_group.rank; r++)
        fade_and_add_states(&s, all, log_decay ? all + r * row + count : NULL, all + r * row);
    tensor_write(before, all);
    const size_t d_bytes = (size_t)s.heads * sizeof *all;
    for (int r = 0; log_decay && r < sequence_group.ranks; r++) /* d [ranks, heads] */
        memmove(all + r * s.heads, all + r * row + count, d_bytes);
    if (log_decay)
        s.d = tape_save(tape, all, (size_t)sequence_group.ranks * d_bytes);
    free(all);
    tape_record(tape, (Node){ .name = "dist_states_before",
                              .backward = states_before_backward,
                              .inputs = { state, log_decay },
                              .outputs = { before },
                              .attributes = tape_save(tape, &s, sizeof s),
                              .collective = true });
    return before;
}
