/* The gradient of the log decay on the CPU: sums over positions of the scans' dots, from states at
 * the segments' boundaries. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_GRADIENT_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_GRADIENT_CPU_H

#include <float.h>

#include "ops/cpu/attention/linear/decay.h"

/* dl_i = before dl_i + factor dots_i: of a.(Z dnum~), then of b.(R' v~) */
static void add_to_dl(const HeadChunk *c, Real before, Real factor)
{
    const Real *dots = c->item->buffers.dots;
    Real *dl = c->item->plan->dl + den_at(c);
    const int64_t stride = den_stride(c);
    for (int64_t i = 0; i < c->scan.count; i++)
        dl[i * stride] = (before != 0 ? dl[i * stride] : 0) + factor * dots[i];
}

/* <S~, R~> of a head of the item, transposed, in double */
static double states_product(const ScanItem *item, Real *S, Real *R_t, int64_t head)
{
    const ScanPlan *p = item->plan;
    const Matrix s = head_state(item, S, head, p->D), r = head_state(item, R_t, head, p->D);
    const Real *r_last = head_state(item, item->buffers.R, head, p->M).last;
    double sum = 0;
    for (int64_t k = 0; k < p->D * p->M; k++)
        sum += (double)s.data[k] * (double)r.data[k];
    for (int64_t k = 0; s.last && k < p->D; k++)
        sum += (double)s.last[k] * (double)r_last[k];
    return sum;
}

/* dl_i of a head as a running sum, and of |dl_t - dl_{t+1}| since its last restart the largest and
 * the sum */
typedef struct DecaySum {
    double dl, largest, total;
    int64_t restart; /* the position */
} DecaySum;

/* Moves from position i to i + 1; returns dl_i, which is 0 where l_i is -infinity. Where e^(l_i) is
 * below the rounding error of a term, a sum that does not exceed such errors consists of them: 0
 * keeps them out of the elements after it. */
static double next_log_decay_gradient(DecaySum *s, int64_t i, Real log_decay, Real difference)
{
    const double epsilon = sizeof(Real) == sizeof(float) ? FLT_EPSILON : DBL_EPSILON;
    const Real strong = sizeof(Real) == sizeof(float) ? -16 : -36; /* about log(epsilon) */
    if (log_decay == -(Real)INFINITY ||
        (log_decay < strong && fabs(s->dl) < 8 * epsilon * s->largest))
        *s = (DecaySum){ .restart = i };
    const double dl = s->dl, size = fabs((double)difference);
    s->dl -= (double)difference;
    s->largest = size > s->largest ? size : s->largest;
    s->total += size;
    return dl;
}

/* dl of a head's positions in a range, where R~ is e^(l_begin) R~_begin: the sum starts from the
 * states at its first position; returns dl there. If `after`, dl of the position after the range,
 * is not NaN, the sum's error at the end, known then, is divided among the terms by their sizes. dl
 * of masked positions is 0. */
static double sum_log_decay_gradient(const ScanItem *item, Gradient dlog_decay, ScanRange range,
                                     int64_t head, double after)
{
    const ScanPlan *p = item->plan;
    const ScanBuffers *m = &item->buffers;
    const bool has_state = range.begin > 0 || p->options->state;
    const int64_t H = p->x->H, first = item->query_row * H + head;
    const Real *l = p->options->log_decay + first, *difference = p->dl + first;
    const double dl = has_state ? states_product(item, m->S, m->R_t, head) : 0;
    const DecaySum begin = { .dl = dl, .restart = range.begin };
    DecaySum end = begin, sum = begin;
    for (int64_t i = range.begin; i < range.end; i++)
        next_log_decay_gradient(&end, i, l[i * H], difference[i * H]);
    const double error = isnan(after) || end.total == 0 ? 0 : (after - end.dl) / end.total;
    for (int64_t i = range.begin; i < range.end; i++) {
        const double before = i > end.restart ? sum.total * error : 0;
        const double dl_i = next_log_decay_gradient(&sum, i, l[i * H], difference[i * H]) + before;
        gradient_add(dlog_decay, first + i * H, i < item->keys ? (Real)dl_i : 0);
    }
    return dl;
}

/* The same for all heads of the item; after [heads] becomes dl of the range's first position. */
static void sum_log_decay_gradients(const ScanItem *item, Gradient dlog_decay, ScanRange range,
                                    double *after)
{
    load_prefix_states(item, item->buffers.S, range.begin / item->plan->segment);
    for (int64_t head = item->first_head; head < item->end_head; head++, after++)
        *after = sum_log_decay_gradient(item, dlog_decay, range, head, *after);
}

#endif
