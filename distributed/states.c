/* Sequence parallelism of linear attention and the delta rule: one all-gather of states and an
 * ordered local merge (LASP-2: Sun et al. 2025, arXiv 2502.07563).
 *
 * A sequence is split over ranks 0 ... n - 1 of a group. For each head, rank r's positions take a
 * state before them to A_r before + S_r: S_r [D, C] is the state after them from a zero state, and
 * the transition A_r is 1, e^(d_r) with d_r the sum of their log decays, or, for the delta rule, a
 * matrix [D, D].
 *
 * Forward
 *     before_0 = 0      before_{j+1} = A_j before_j + S_j
 * Every rank gathers all S and A, and computes its own before_r.
 *
 * Backward, from g_r = dL/dbefore_r, where L is the sum of all ranks' losses
 *   G_j, the gradient by before_{j+1} in all ranks' recurrences, is g_{j+1} and what the later
 *   transitions pass on:
 *     G_{n-1} = 0      G_{r-1} = g_r + A_r^T G_r
 *   S_j and A_j are in before_{j+1} alone:
 *     dS_j = G_j      dA_j = G_j before_j^T      dd_j = e^(d_j) <G_j, before_j>
 * Every rank gathers all g, and computes its own G_r and dA_r. The gathered states are not needed
 * again: it saves all A, and before_r is its output.
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

/* What a rank sends: the states of all heads and, forward, their transitions. */
typedef struct StatesExchange {
    int64_t heads, D, C; /* B H; the sizes of a state */
    bool matrices;       /* A [heads, D, D], else d [heads] */
    int64_t transitions; /* elements of all heads' A or d; 0: A = 1 */
    const Real *A;       /* [ranks, transitions] */
} StatesExchange;

static int64_t states_count(const StatesExchange *s)
{
    return s->heads * s->D * s->C;
}

/* Elements of a rank's row: a multiple of 64 bytes, in which MPI counts more than 2 GB. */
static int64_t row_elements(const StatesExchange *s, bool with_transitions)
{
    enum { MULTIPLE = 64 / sizeof(Real) };
    const int64_t count = states_count(s) + (with_transitions ? s->transitions : 0);
    return (count + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
}

/* [ranks, row] in host memory: of this rank's row, the states, zeros if NULL, and the transitions,
 * none if NULL, are exchanged for those of all ranks. */
static Real *exchange_states(Tape *tape, Device *device, const StatesExchange *s,
                             const Real *states, const Real *transitions)
{
    if (device_is_capturing(device))
        tape_error(tape, "dist_states_before: this step is replayed, expected a step without "
                         "tape_replay: it exchanges states with other processes");
    const int64_t count = states_count(s), more = transitions ? s->transitions : 0;
    const int64_t row = row_elements(s, transitions != NULL);
    const size_t bytes = (size_t)row * sizeof(Real);
    Real *all = memory_allocate((size_t)sequence_group.ranks * bytes);
    if (!all)
        tape_error(tape,
                   "dist_states_before: memory is exhausted: the states of %d ranks, %lld "
                   "bytes each",
                   sequence_group.ranks, (long long)bytes);
    Real *own = all + sequence_group.rank * row;
    memset(own + count + more, 0, (size_t)(row - count - more) * sizeof *own);
    if (states)
        device_copy_out(device, own, states, (size_t)count * sizeof *own);
    else
        memset(own, 0, (size_t)count * sizeof *own);
    if (transitions)
        device_copy_out(device, own + count, transitions, (size_t)more * sizeof *own);
    dist_all_gather_rows_of(&sequence_group, all, bytes);
    return all;
}

/* The element [i, j] of head k's transition, which has none but the diagonal unless s->matrices */
static double transition_at(const StatesExchange *s, const Real *A, int64_t k, int64_t i, int64_t j)
{
    if (s->matrices)
        return (double)A[(k * s->D + i) * s->D + j];
    return s->transitions ? exp((double)A[k]) : 1;
}

/* to <- to + A from, or to + A^T from, for all heads */
static void add_passed_on(const StatesExchange *s, Real *to, const Real *A, const Real *from,
                          bool transposed)
{
    const int64_t D = s->D, C = s->C;
    for (int64_t row = 0; row < s->heads * D; row++) {
        const int64_t k = row / D, i = row % D;
        for (int64_t j = s->matrices ? 0 : i; j < (s->matrices ? D : i + 1); j++) {
            const double a = transition_at(s, A, k, transposed ? j : i, transposed ? i : j);
            for (int64_t c = 0; a != 0 && c < C; c++) /* 0: nothing, of infinite values too */
                to[row * C + c] += (Real)(a * (double)from[(k * D + j) * C + c]);
        }
    }
}

/* dA <- G before^T, or dd <- e^d <G, before>, for all heads */
static void transition_gradient(const StatesExchange *s, Real *dA, const Real *A, const Real *G,
                                const Real *before)
{
    const int64_t D = s->D, C = s->C;
    memset(dA, 0, (size_t)s->transitions * sizeof *dA);
    for (int64_t row = 0; row < s->heads * D; row++) {
        const int64_t k = row / D, i = row % D;
        for (int64_t j = s->matrices ? 0 : i; j < (s->matrices ? D : i + 1); j++) {
            double sum = 0;
            for (int64_t c = 0; c < C; c++)
                sum += (double)G[row * C + c] * (double)before[(k * D + j) * C + c];
            if (s->matrices)
                dA[row * D + j] = (Real)sum;
            else
                dA[k] += (Real)(transition_at(s, A, k, i, i) * sum);
        }
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
    const int64_t count = states_count(s), row = row_elements(s, false);
    const int rank = sequence_group.rank, last = sequence_group.ranks - 1;
    Tensor *state = node->inputs[0], *transition = node->inputs[1];
    const bool differentiable = transition && transition->requires_grad;
    Real *before = NULL; /* [states] and their transitions' gradients */
    if (differentiable)
        before = memory_allocate((size_t)(count + s->transitions) * sizeof *before);
    if (differentiable && !before)
        tape_error(node->tape, "dist_states_before: memory is exhausted");
    Real *g = exchange_states(node->tape, state->device, s, tape_upstream(node, 0), NULL);
    for (int r = last - 1; r > rank; r--) /* g_r becomes G_{r-1} */
        add_passed_on(s, g + r * row, s->A + r * s->transitions, g + (r + 1) * row, true);
    Real *G = g + (rank < last ? rank + 1 : 0) * row;
    if (rank == last)
        memset(G, 0, (size_t)count * sizeof *G);
    contribute_from_host(node, state, G);
    if (differentiable) {
        tensor_read(node->outputs[0], before);
        transition_gradient(s, before + count, s->A + rank * s->transitions, G, before);
        contribute_from_host(node, transition, before + count);
    }
    free(before);
    free(g);
}

static void check_states(Tape *tape, Tensor *state, Tensor *transition)
{
    tape_use_real(tape, "dist_states_before: state", state);
    if (state->shape.rank != 4)
        tape_error(tape, "dist_states_before: state %s, expected [B, H, D, C]",
                   tensor_text(state).text);
    if (!transition)
        return;
    const int64_t *size = state->shape.size;
    const Shape decays = shape(size[0], size[1]);
    const Shape matrices = shape(size[0], size[1], size[2], size[2]);
    tape_use_real(tape, "dist_states_before: transition", transition);
    if (!shape_equal(transition->shape, decays) && !shape_equal(transition->shape, matrices))
        tape_error(
            tape, "dist_states_before: transition %s, expected %s or %s: [B, H], or [B, H, D, D]",
            tensor_text(transition).text, shape_text(decays).text, shape_text(matrices).text);
}

Tensor *dist_states_before(Tape *tape, Tensor *state, Tensor *transition)
{
    check_states(tape, state, transition);
    const int64_t *size = state->shape.size;
    StatesExchange s = { .heads = size[0] * size[1],
                         .D = size[2],
                         .C = size[3],
                         .matrices = transition && transition->shape.rank == 4,
                         .transitions = transition ? tensor_count(transition) : 0 };
    const int rank = sequence_group.rank, ranks = sequence_group.ranks;
    const int64_t count = states_count(&s), row = row_elements(&s, transition != NULL);
    Tensor *before = tape_tensor(tape, state->shape);
    Real *all =
        exchange_states(tape, state->device, &s, state->data, transition ? transition->data : NULL);
    for (int r = 1; r < rank; r++) /* S_r becomes before_{r+1} */
        add_passed_on(&s, all + r * row, all + r * row + count, all + (r - 1) * row, false);
    if (rank == 0)
        memset(all, 0, (size_t)count * sizeof *all);
    tensor_write(before, all + (rank ? rank - 1 : 0) * row);
    const size_t bytes = (size_t)s.transitions * sizeof *all;
    for (int r = 0; r < ranks; r++) /* A [ranks, transitions] */
        memmove(all + r * s.transitions, all + r * row + count, bytes);
    s.A = tape_save(tape, all, (size_t)ranks * bytes);
    free(all);
    tape_record(tape, (Node){ .name = "dist_states_before",
                              .backward = states_before_backward,
                              .inputs = { state, transition },
                              .outputs = { before },
                              .attributes = tape_save(tape, &s, sizeof s),
                              .collective = true });
    return before;
}
