/* The states of linear attention on the CPU. An item's states, one per head, are contiguous, and so
 * are its prefix states of a segment. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_STATES_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_STATES_CPU_H

#include "ops/cpu/attention/linear/items.h"

/* The state of a head, whose matrix has this number of columns: S~ and R~ M; transposed D. */
static Matrix head_state(const ScanItem *item, Real *states, int64_t head, int64_t columns)
{
    const ScanPlan *p = item->plan;
    Real *state = states + (head - item->first_head) * p->state;
    return (Matrix){ state, p->options->unnormalized ? NULL : state + p->D * p->M, columns };
}

static int64_t states_size(const ScanItem *item)
{
    return (item->end_head - item->first_head) * item->plan->state;
}

static void copy_states(const ScanItem *item, Real *to, const Real *from)
{
    memcpy(to, from, (size_t)states_size(item) * sizeof *to);
}

static void zero_states(const ScanItem *item, Real *states)
{
    memset(states, 0, (size_t)states_size(item) * sizeof *states);
}

static void add_states(const ScanItem *item, Real *to, const Real *from)
{
    for (int64_t i = 0; i < states_size(item); i += LANES)
        *at_vector(to + i) += vector(from + i);
}

/* The log decay over the segments' positions of a head. */
static double segment_log_decay(const ScanItem *item, int64_t segment, int64_t head)
{
    const ScanPlan *p = item->plan;
    const int64_t begin = segment * p->segment, end = minimum(begin + p->segment, item->keys);
    double sum = 0;
    for (int64_t i = begin; i < end; i++)
        sum += p->options->log_decay[(item->query_row + i) * p->x->H + head];
    return sum;
}

/* to <- to + e^(the segment's log decay) from */
static void add_decayed_states(const ScanItem *item, Real *to, const Real *from, int64_t segment)
{
    const ScanPlan *p = item->plan;
    for (int64_t head = item->first_head; head < item->end_head; head++) {
        const Real decay =
            p->options->log_decay ? (Real)exp(segment_log_decay(item, segment, head)) : 1;
        for (int64_t i = 0; i < p->state; i += LANES, to += LANES, from += LANES)
            *at_vector(to) += decay * vector(from);
    }
}

/* The item's states at a segment, in prefix or suffix. The number of segments of each sequence is
 * rounded up, so a sequence reserves one more than its share of all positions. */
static Real *boundary(const ScanItem *item, Real *states, int64_t segment)
{
    const ScanPlan *p = item->plan;
    const int64_t first = item->query_row / p->segment + item->sequence;
    return states + ((first + segment) * p->x->H + item->first_head) * p->state;
}

/* The offset in [B, H, D, M + 1] of the item's first state; unnormalized, M columns. */
static int64_t first_state(const ScanItem *item)
{
    const AttentionInputs *x = item->plan->x;
    return (item->sequence * x->H + item->first_head) * x->D *
           linear_scan_columns(item->plan->options);
}

/* to = state [B, H, D, M + 1], each one padded, its matrix transposed or not; NULL: 0 */
static void unpack_states(const ScanItem *item, Real *to, const Real *state, bool transposed)
{
    const ScanPlan *p = item->plan;
    const int64_t M = p->x->M, row = transposed ? 1 : p->M, column = transposed ? p->D : 1;
    zero_states(item, to);
    if (!state)
        return;
    const int64_t W = linear_scan_columns(p->options);
    state += first_state(item);
    for (int64_t head = item->first_head; head < item->end_head; head++, to += p->state)
        for (int64_t d = 0; d < p->x->D; d++, state += W) {
            for (int64_t m = 0; m < M; m++)
                to[d * row + m * column] = state[m];
            if (W > M)
                to[p->D * p->M + d] = state[M];
        }
}

/* to [B, H, D, M + 1] = the item's states */
static void store_states(const ScanItem *item, Real *to, const Real *from)
{
    const ScanPlan *p = item->plan;
    const int64_t M = p->x->M, W = linear_scan_columns(p->options);
    to += first_state(item);
    for (int64_t head = item->first_head; head < item->end_head; head++, from += p->state)
        for (int64_t d = 0; d < p->x->D; d++, to += W) {
            memcpy(to, from + d * p->M, (size_t)M * sizeof *to);
            if (W > M)
                to[M] = from[p->D * p->M + d];
        }
}

/* S~ before a segment; in the backward pass transposed. */
static void load_prefix_states(const ScanItem *item, Real *S, int64_t segment)
{
    const ScanPlan *p = item->plan;
    if (segment > 0)
        copy_states(item, S, boundary(item, p->prefix, segment));
    else
        unpack_states(item, S, p->options->state, p->backward);
}

/* R~ after a segment. */
static void load_suffix_states(const ScanItem *item, Real *R, int64_t segment,
                               const Real *dfinal_state)
{
    if (segment + 1 < item->segments)
        copy_states(item, R, boundary(item, item->plan->suffix, segment));
    else
        unpack_states(item, R, dfinal_state, false);
}

/* R^T of every head. */
static void transpose_states(const ScanItem *item, Real *R_t, const Real *R)
{
    const ScanPlan *p = item->plan;
    for (int64_t i = 0; i < states_size(item); i += p->state)
        transpose(R_t + i, R + i, p->M, p->D, p->M, p->D);
}

#endif
