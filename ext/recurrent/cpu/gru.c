/* The GRU's cell on the CPU: a block of hidden units at one step, vectorized. ext/recurrent/gru.c
 * has the derivation. */
#include "ext/recurrent/cpu/recurrence.h"

/* The first n units of a block, n = units.count; gates: x W_ih^T, which becomes r, z, n; sums:
 * h W_hh^T. Gates are H, of sums stride apart. */
ALWAYS_INLINE void gru_units(const Recurrence *R, CellStep at, UnitBlock units, const Real *sums,
                             int64_t stride, const Real *h_before, Real *h, int64_t n)
{
    const int64_t H = R->H, row = at.b * R->N + at.position;
    Real *gates = R->gates + row * 3 * H + units.first, *saved = R->saved + row * H + units.first;
    Real *out = R->out + row * H + units.first;
    const Real *bias_ih = R->bias_ih + units.first, *bias_hh = R->bias_hh + units.first;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        const Real r = real_sigmoid(gates[j] + sums[j] + (bias_ih[j] + bias_hh[j]));
        const Real z =
            real_sigmoid(gates[H + j] + sums[stride + j] + (bias_ih[H + j] + bias_hh[H + j]));
        const Real m = sums[2 * stride + j] + bias_hh[2 * H + j];
        const Real new = real_tanh(gates[2 * H + j] + bias_ih[2 * H + j] + r * m);
        gates[j] = r;
        gates[H + j] = z;
        gates[2 * H + j] = new;
        saved[j] = m;
        out[j] = h[j] = new + z *(h_before[j] - new);
    }
}

static void gru_cell(const Recurrence *r, CellStep at, UnitBlock units, const Real *sums,
                     int64_t stride, const Real *from, Real *to)
{
    if (units.count == UNITS)
        gru_units(r, at, units, sums, stride, from, to, UNITS);
    else
        gru_units(r, at, units, sums, stride, from, to, units.count);
}

static void gru_forward_cpu(Recurrence r)
{
    recurrence_forward(r, gru_cell);
}

/* gates become dr, dz, da_n, saved dm, and copy dr, dz, dm; dout [n], or NULL. */
ALWAYS_INLINE void gru_units_backward(Real *gates, Real *copy, Real *saved, const Real *h_before,
                                      const Real *dout, Real *dh, int64_t H, int64_t n)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        const Real r = gates[j], z = gates[H + j], new = gates[2 * H + j], m = saved[j];
        const Real dh_t = dh[j] + (dout ? dout[j] : 0);
        const Real da_n = dh_t * (1 - z) * (1 - new *new);
        copy[j] = gates[j] = da_n * m * r * (1 - r);
        copy[H + j] = gates[H + j] = dh_t * (h_before[j] - new) * z * (1 - z);
        gates[2 * H + j] = da_n;
        copy[2 * H + j] = saved[j] = da_n * r;
        dh[j] = dh_t * z; /* the product adds W_hh^T [dr, dz, dm] */
    }
}

static void gru_cell_backward(const Recurrence *r, CellStep at, UnitBlock units, Real *dh,
                              Real *dgates)
{
    const int64_t H = r->H, row = at.b * r->N + at.position, first = units.first;
    Real *gates = r->gates + row * 3 * H + first, *saved = r->saved + row * H + first;
    const Real *before = r->previous + row * H + first;
    const Real *dout = r->dout ? r->dout + row * H + first : NULL;
    if (units.count == UNITS && dout)
        gru_units_backward(gates, dgates, saved, before, dout, dh, H, UNITS);
    else
        gru_units_backward(gates, dgates, saved, before, dout, dh, H, units.count);
}

static void gru_backward_cpu(Recurrence r)
{
    recurrence_backward(r, gru_cell_backward);
}

const CellKernels gru_cpu = { gru_forward_cpu, gru_backward_cpu, gru_hidden_gates_plain,
                              previous_hidden_plain };
