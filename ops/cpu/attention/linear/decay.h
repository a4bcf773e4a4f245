/* The decay of causal linear attention on the CPU. T <- e^(l_i) T at every row would add an
 * instruction to two of the inner loop. Instead the rows of a chunk are scanned without a decay,
 * with factors on both sides: with c_i - c_j the log decay from row j to row i,
 *     o_i = e^(c_i) sum_{j<=i} (x_i.y_j) (e^(-c_j) w_j)
 * A chunk is divided where the decay of a part would exceed MAX_DROP, and c is 0 in the middle of a
 * part, so no factor exceeds e^(MAX_DROP / 2). */
#ifndef TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_CPU_H
#define TAPEGRAD_OPS_ATTENTION_LINEAR_DECAY_CPU_H

#include "ops/cpu/attention/linear/chunk.h"
#include "ops/cpu/attention/linear/states.h"

static const Real MAX_DROP = 80;

/* log_decay [count + 1]: the log decays before each row of the chunk and after the last. In
 * reverse, T decays after a row. Masked positions do not decay. */
static void load_log_decay(const HeadChunk *c)
{
    const Real *l = c->item->plan->options->log_decay + den_at(c);
    const int64_t stride = den_stride(c);
    Real *to = c->item->buffers.log_decay;
    memset(to, 0, (size_t)(c->scan.count + 1) * sizeof *to);
    to += c->range.direction == SCAN_REVERSE;
    for (int64_t i = c->first_key; i < c->end_key; i++)
        to[i] = l[i * stride];
}

/* Sets the parts of the chunk's scan, raise_i = e^(c_i), a product of the e^(l_i), and lower_i =
 * e^(-c_i). */
static void load_decay(HeadChunk *c)
{
    const ScanBuffers *m = &c->item->buffers;
    const int64_t count = c->scan.count;
    if (!c->item->plan->options->log_decay)
        return;
    load_log_decay(c);
    for (int64_t i = 0; i <= count; i += LANES)
        *at_vector(m->decay + i) = exp_vector(vector(m->log_decay + i));
    DecayPart *part = m->parts;
    for (int64_t first = 0, end; first < count; first = end, part++) {
        Real drop = 0;
        for (end = first + 1; end < count && drop - m->log_decay[end] <= MAX_DROP; end++)
            drop -= m->log_decay[end];
        Real raise = real_exp(drop / 2);
        part->end = end;
        part->enter = m->decay[first] / raise;
        m->raise[first] = raise;
        for (int64_t i = first + 1; i < end; i++)
            m->raise[i] = raise *= m->decay[i];
        part->leave = end == count ? raise * m->decay[count] : raise;
    }
    for (int64_t i = 0; i < count; i += LANES)
        *at_vector(m->lower + i) = 1 / vector(m->raise + i);
    c->scan.parts = m->parts;
}

/* row i <- factor_i row i, unless factor, lower or raise, is NULL; keys have no last column, and
 * that of values was 1 */
static void scale_chunk_rows(const HeadChunk *c, const Real *factor, Matrix rows)
{
    for (int64_t i = 0; factor && i < c->scan.count; i++) {
        scale_row(rows, i, factor[i]);
        if (rows.last)
            rows.last[i] = factor[i];
    }
}

/* For a sum T~ over the chunk's rows, row i <- e^(the log decay after row i) row i, and T~ <-
 * e^(the chunk's) T~. */
static void fade_to_end(const HeadChunk *c, Matrix rows, Matrix T, int64_t state_rows)
{
    const ScanPlan *p = c->item->plan;
    const Real *log_decay = c->item->buffers.log_decay;
    Real sum = 0;
    if (!log_decay)
        return;
    load_log_decay(c);
    for (int64_t i = c->scan.count - 1; i >= 0; i--) {
        sum += log_decay[i + 1];
        const Real factor = real_exp(sum);
        scale_row(rows, i, factor);
        if (rows.last)
            rows.last[i] *= factor;
    }
    const Real decay = real_exp(sum + log_decay[0]);
    scale(T.data, state_rows * T.columns, decay);
    if (T.last)
        scale(T.last, p->D, decay);
}

/* In reverse, for rows that only read T~: raise_i = e^(the log decay of the rows before row i), or
 * NULL without a decay. Then fade_states: T~, stored twice, <- e^(the chunk's) T~. */
static const Real *load_fade(const HeadChunk *c)
{
    const ScanBuffers *m = &c->item->buffers;
    Real sum = 0;
    if (!m->log_decay)
        return NULL;
    load_log_decay(c);
    for (int64_t i = 0; i < c->scan.count; i++)
        m->raise[i] = real_exp(sum += m->log_decay[i]);
    return m->raise;
}
static void fade_states(const HeadChunk *c, Matrix T, Matrix T_transposed)
{
    const ScanPlan *p = c->item->plan;
    const ScanBuffers *m = &c->item->buffers;
    if (!m->log_decay)
        return;
    const int64_t count = c->scan.count;
    const Real decay = m->raise[count - 1] * real_exp(m->log_decay[count]);
    scale(T.data, p->D * p->M, decay);
    scale(T_transposed.data, p->D * p->M, decay);
    if (T.last)
        scale(T.last, p->D, decay);
}

/* dl_i = before dl_i + factor (row_i . drow_i): of a and da, then of b and db */
static void add_to_dl(const HeadChunk *c, Real before, Real factor, Matrix rows, Matrix drows)
{
    Real *dl = c->item->plan->dl + den_at(c);
    const int64_t n = rows.columns, stride = den_stride(c);
    for (int64_t i = 0; i < c->scan.count; i++)
        dl[i * stride] = (before != 0 ? dl[i * stride] : 0) +
                         factor * dot(rows.data + i * n, drows.data + i * n, n);
}

/* dl_i <- <S~_N, dL/dS~_N> + sum_{t>=i} dl_t, and 0 for masked positions */
static void sum_log_decay_gradients(const ScanPlan *p, Gradient dlog_decay, const Real *final_state,
                                    const Real *dfinal_state)
{
    const AttentionInputs *x = p->x;
    const int64_t size = x->D * linear_scan_columns(p->options);
    PRAGMA(omp parallel for schedule(static) num_threads(threads_of_plan(p)))
    for (int64_t head = 0; head < x->B * x->H; head++) {
        const int64_t begin = sequence_start(x, head / x->H);
        const int64_t length = sequence_length(x, head / x->H);
        const int64_t keys = x->key_lengths ? x->key_lengths[head / x->H] : length;
        double sum = 0;
        for (int64_t k = head * size; dfinal_state && k < (head + 1) * size; k++)
            sum += (double)final_state[k] * (double)dfinal_state[k];
        for (int64_t i = length - 1; i >= 0; i--) {
            const int64_t at = (begin + i) * x->H + head % x->H;
            sum += p->dl[at];
            gradient_add(dlog_decay, at, i < keys ? (Real)sum : 0);
        }
    }
}

#endif
