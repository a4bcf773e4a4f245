/* The LSTM's cell on the CPU: a block of hidden units at one step, vectorized. ext/recurrent/lstm.c
 * has the derivation. */
#include "ext/recurrent/cpu/recurrence.h"

/* The first n units of a block, n = units.count; gates: x W_ih^T, which becomes the gates; sums:
 * h W_hh^T. Gates are H, of sums stride apart. */
ALWAYS_INLINE void lstm_units(const Recurrence *r, CellStep at, UnitBlock units, const Real *sums,
                              int64_t stride, Real *h, int64_t n)
{
    const int64_t H = r->H, row = at.b * r->N + at.position;
    Real *gates = r->gates + row * 4 * H + units.first, *c = r->cell + at.b * H + units.first;
    Real *cells = r->saved + row * H + units.first, *out = r->out + row * H + units.first;
    const Real *bias_ih = r->bias_ih + units.first, *bias_hh = r->bias_hh + units.first;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        Real a[4];
        for (int64_t k = 0; k < 4; k++)
            a[k] =
                gates[k * H + j] + sums[k * stride + j] + (bias_ih[k * H + j] + bias_hh[k * H + j]);
        const Real i = real_sigmoid(a[0]), f = real_sigmoid(a[1]), candidate = real_tanh(a[2]);
        const Real o = real_sigmoid(a[3]), c_t = f * c[j] + i * candidate;
        gates[j] = i;
        gates[H + j] = f;
        gates[2 * H + j] = candidate;
        gates[3 * H + j] = o;
        c[j] = cells[j] = c_t;
        out[j] = h[j] = o * real_tanh(c_t);
    }
}

static void lstm_cell(const Recurrence *r, CellStep at, UnitBlock units, const Real *sums,
                      int64_t stride, const Real *from, Real *to)
{
    (void)from;
    if (units.count == UNITS)
        lstm_units(r, at, units, sums, stride, to, UNITS);
    else
        lstm_units(r, at, units, sums, stride, to, units.count);
}

static void lstm_forward_cpu(Recurrence r)
{
    recurrence_forward(r, lstm_cell);
}

/* The n units from `first` on: gates become dgates, copied to `copy`; c_before [n], or NULL: zeros;
 * dout [n], or NULL. */
ALWAYS_INLINE void lstm_units_backward(const Recurrence *r, CellStep at, int64_t first, Real *copy,
                                       const Real *c_before, const Real *dout, Real *dh, int64_t n)
{
    const int64_t H = r->H, row = at.b * r->N + at.position;
    Real *gates = r->gates + row * 4 * H + first, *dc = r->dcell + at.b * H + first;
    const Real *cells = r->saved + row * H + first;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        const Real i = gates[j], f = gates[H + j], candidate = gates[2 * H + j],
                   o = gates[3 * H + j];
        const Real tanh_c = real_tanh(cells[j]);
        const Real dh_t = dh[j] + (dout ? dout[j] : 0);
        const Real dc_t = dc[j] + dh_t * o * (1 - tanh_c * tanh_c);
        copy[j] = gates[j] = dc_t * candidate * i * (1 - i);
        copy[H + j] = gates[H + j] = dc_t * (c_before ? c_before[j] : 0) * f * (1 - f);
        copy[2 * H + j] = gates[2 * H + j] = dc_t * i * (1 - candidate * candidate);
        copy[3 * H + j] = gates[3 * H + j] = dh_t * tanh_c * o * (1 - o);
        dc[j] = dc_t * f;
        dh[j] = 0; /* the product adds W_hh^T dgates */
    }
}

static void lstm_cell_backward(const Recurrence *r, CellStep at, UnitBlock units, Real *dh,
                               Real *dgates)
{
    const int64_t H = r->H, row = at.b * r->N + at.position, first = units.first;
    const Real *cells = r->saved + row * H + first;
    const Real *initial = r->initial_cell ? r->initial_cell + at.b * H + first : NULL;
    const Real *before = at.step == 0 ? initial : r->reverse ? cells + H : cells - H;
    const Real *dout = r->dout ? r->dout + row * H + first : NULL;
    if (units.count == UNITS && before && dout)
        lstm_units_backward(r, at, first, dgates, before, dout, dh, UNITS);
    else
        lstm_units_backward(r, at, first, dgates, before, dout, dh, units.count);
}

static void lstm_backward_cpu(Recurrence r)
{
    recurrence_backward(r, lstm_cell_backward);
}

const CellKernels lstm_cpu = { lstm_forward_cpu, lstm_backward_cpu, NULL, previous_hidden_plain };
