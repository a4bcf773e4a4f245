/* The decay of causal linear attention on the CPU. T <- e^(l_i) T at every row would add an
 * instruction to two of the inner loop. Instead T is stored as T' = e^(-c) T, where row i adds l_i
 * to c, and the rows of a chunk are scanned without a decay, with factors on both sides:
 *     T'_i = T'_{i-1} + y_i (e^(-c_i) w_i)^T      o_i = e^(c_i) T'_i^T x_i
 * Where c would fall below -MAX_SCALE, T' is scaled to c = MAX_SCALE, or to a smaller c after a
 * strong decay. A weak decay scales no T' for many chunks; and since c is a sum in double, its
 * rounding errors do not add up. */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_CPU_H

#include "ops/cpu/attention/linear/chunk.h"
#include "ops/cpu/attention/linear/states.h"

/* e^-MAX_FACTOR is not denormal, nor is T e^-MAX_DECAY: e^l below that is 0. */
static const double MAX_SCALE = 38, MAX_FACTOR = 86, MAX_DECAY = 70;
/* e^-MAX_LOG_DECAY is 0. Smaller sums are replaced: the difference of infinite ones is NaN. */
static const double MAX_LOG_DECAY = 1000;

/* l, or where e^l is replaced by 0 one that is as good as -infinity */
static inline Real log_of_factor(Real l)
{
    return (double)l < -MAX_DECAY ? -(Real)MAX_LOG_DECAY : l;
}

/* log_decay [count + 1]: the log decays before each row of the chunk and after the last. In
 * reverse, T decays after a row. Masked positions do not decay. */
static void load_log_decay(const HeadChunk *c)
{
    const Real *l = c->item->plan->options->log_decay + den_at(c);
    const int64_t stride = den_stride(c);
    Real *to = c->item->buffers.log_decay;
    *(c->range.direction == SCAN_REVERSE ? to++ : to + c->scan.count) = 0;
    for (int64_t i = 0; i < c->scan.count; i++)
        to[i] = i >= c->first_key && i < c->end_key ? log_of_factor(l[i * stride]) : 0;
}

/* The scaled state of the chunk's head; c = 0 before the first chunk of a range */
static ScaledState *scaled_state(const HeadChunk *c)
{
    ScaledState *scaled = c->item->buffers.scaled + c->head - c->item->first_head;
    if (c->is_first)
        *scaled = (ScaledState){ 0 };
    return scaled;
}

/* raise_i = e^(c_i), as e^high (1 + low), where high is c_i rounded to Real */
WHOLE_VECTORS static void raise_by_sums(const ScanBuffers *m, int64_t count)
{
    Real *restrict high = m->raise, *restrict low = m->lower;
    const double *restrict sums = m->sums;
    for (int64_t i = 0; i < count; i++) {
        high[i] = (Real)sums[i];
        low[i] = (Real)(sums[i] - (double)high[i]);
    }
    for (int64_t i = 0; i < count; i += LANES)
        *at_vector(m->raise + i) = exp_vector(vector(high + i)) * (1 + vector(low + i));
}

/* c after a row to which T' is scaled: e^(l_i - c) is at least e^-MAX_DECAY where e^(l_i) is */
static double scale_after(Real log_decay)
{
    const double most = MAX_DECAY + (double)log_decay;
    return most > MAX_SCALE ? MAX_SCALE : most > 0 ? most : 0;
}

/* Sets the parts of the chunk's scan, raise_i = e^(c_i) and lower_i = e^(-c_i). At the end of a
 * range c = 0. */
static void load_decay(HeadChunk *c)
{
    const ScanBuffers *m = &c->item->buffers;
    const int64_t count = c->scan.count;
    if (!c->item->plan->options->log_decay)
        return;
    load_log_decay(c);
    ScaledState *scaled = scaled_state(c);
    if (c->range.direction == SCAN_REVERSE)
        m->log_decay[0] = scaled->next;
    DecayPart *part = m->parts;
    double sum = scaled->c;
    *part = (DecayPart){ count, 1, 1 };
    for (int64_t i = 0; i < count; i++) {
        const double c_i = sum + (double)m->log_decay[i];
        if (c_i < -MAX_SCALE) {
            const double c_new = scale_after(m->log_decay[i]);
            const bool once = c_i - c_new > -MAX_FACTOR;
            part->end = i;
            part->leave = once ? 1 : (Real)exp(sum);
            *++part = (DecayPart){ count, (Real)exp(c_i - c_new - (once ? 0 : sum)), 1 };
            sum = c_new;
        } else {
            sum = c_i;
        }
        m->sums[i] = sum;
    }
    scaled->c = sum;
    scaled->next = m->log_decay[count];
    if (c->is_last)
        part->leave = (Real)exp(sum + (double)m->log_decay[count]);
    raise_by_sums(m, count);
    for (int64_t i = 0; i < count; i += LANES)
        *at_vector(m->lower + i) = 1 / vector(m->raise + i);
    c->scan.parts = m->parts;
    c->scan.end_part = part + 1;
}

/* row i <- factor_i row i, unless factor, lower or raise, is NULL; keys have no last column, and
 * that of values was 1 */
static void scale_chunk_rows(const HeadChunk *c, const Real *factor, Matrix rows)
{
    if (!factor)
        return;
    scale_packed_rows(rows, factor, c->scan.count);
    if (rows.last)
        memcpy(rows.last, factor, (size_t)c->scan.count * sizeof *factor);
}

static double clamp_log_decay(double sum)
{
    return sum < -MAX_LOG_DECAY ? -MAX_LOG_DECAY : sum;
}

/* For a sum T~ over the chunk's rows: row i <- e^(the log decay after row i - c) row i, with c that
 * after the chunk, to which T~ is scaled if necessary. */
static void fade_to_end(const HeadChunk *c, Matrix rows, Matrix T, int64_t state_rows)
{
    const ScanPlan *p = c->item->plan;
    const ScanBuffers *m = &c->item->buffers;
    const int64_t count = c->scan.count;
    if (!m->log_decay)
        return;
    load_log_decay(c);
    ScaledState *scaled = scaled_state(c);
    double sum = 0;
    for (int64_t i = count - 1; i >= 0; i--)
        m->sums[i] = sum += (double)m->log_decay[i + 1];
    sum += scaled->c + (double)m->log_decay[0];
    const bool scales = c->is_last || !(sum >= -MAX_SCALE);
    scaled->c = scales ? 0 : sum;
    for (int64_t i = 0; i < count; i++)
        m->sums[i] = clamp_log_decay(m->sums[i]) - scaled->c;
    raise_by_sums(m, count);
    scale_packed_rows(rows, m->raise, count);
    for (int64_t i = 0; rows.last && i < count; i++)
        rows.last[i] *= m->raise[i];
    if (!scales)
        return;
    scale(T.data, state_rows * T.columns, (Real)exp(sum));
    if (T.last)
        scale(T.last, p->D, (Real)exp(sum));
}

/* In reverse, for rows that only read T~: raise_i = e^(the log decay of the range's rows before row
 * i), or NULL without a decay. Then fade_states, after the range: T~, stored twice, <- e^(the
 * range's) T~. */
static const Real *load_fade(const HeadChunk *c)
{
    const ScanBuffers *m = &c->item->buffers;
    const int64_t count = c->scan.count;
    if (!m->log_decay)
        return NULL;
    load_log_decay(c);
    ScaledState *scaled = scaled_state(c);
    for (int64_t i = 0; i < count; i++)
        m->sums[i] = scaled->c = clamp_log_decay(scaled->c + (double)m->log_decay[i]);
    scaled->c += (double)m->log_decay[count];
    raise_by_sums(m, count);
    return m->raise;
}
static void fade_states(const HeadChunk *c, Matrix T, Matrix T_transposed)
{
    const ScanPlan *p = c->item->plan;
    if (!c->item->buffers.log_decay || !c->is_last)
        return;
    const Real decay = (Real)exp(c->item->buffers.scaled[c->head - c->item->first_head].c);
    scale(T.data, p->D * p->M, decay);
    scale(T_transposed.data, p->D * p->M, decay);
    if (T.last)
        scale(T.last, p->D, decay);
}

#endif
