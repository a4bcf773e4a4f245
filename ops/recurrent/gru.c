/* gru: gated recurrent units (Cho et al. 2014), with the two biases of PyTorch's. Per step, from h
 * of the step before (s: sigmoid):
 *   r = s(W_ir x_t + b_ir + W_hr h_t-1 + b_hr)    z = s(W_iz x_t + b_iz + W_hz h_t-1 + b_hz)
 *   m = W_hn h_t-1 + b_hn                         n = tanh(W_in x_t + b_in + r m)
 *   h_t = (1 - z) n + z h_t-1 = n + z (h_t-1 - n)
 * Backpropagation through time: dh is the gradient of h_t from all later steps. h_t-1 enters h_t
 * directly, multiplied by z, and by the three products:
 *   dh <- dout_t
 *   da_n = dh (1 - z) (1 - n^2)            before the functions: s' = s (1 - s), tanh' = 1 - tanh^2
 *   dm   = da_n r
 *   dr   = da_n m r (1 - r)
 *   dz   = dh (h_t-1 - n) z (1 - z)
 *   dh_t-1 = dh z + W_hh^T [dr, dz, dm]
 * The gradient of W_ih x_t is [dr, dz, da_n], that of W_hh h_t-1 is [dr, dz, dm]; recurrence.c has
 * the gradients of x, weights and biases. Saved: r, z, n and m. */
#include "ops/cpu/recurrent/recurrence.h"

/* gates: x W_ih^T, which becomes r, z, n; sums: h W_hh^T. Gates are H, of sums stride apart. */
ALWAYS_INLINE void gru_units(Real *gates, const Real *sums, const Real *bias_ih,
                             const Real *bias_hh, Real *saved, Real *out, const Real *h_before,
                             Real *h, int64_t H, int64_t stride, int64_t n)
{
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
    const int64_t H = r->H, row = at.b * r->N + at.position;
    Real *gates = r->gates + row * 3 * H + units.first, *saved = r->saved + row * H + units.first;
    Real *out = r->out + row * H + units.first;
    const Real *bias_ih = r->bias_ih + units.first, *bias_hh = r->bias_hh + units.first;
    if (units.count == UNITS)
        gru_units(gates, sums, bias_ih, bias_hh, saved, out, from, to, H, stride, UNITS);
    else
        gru_units(gates, sums, bias_ih, bias_hh, saved, out, from, to, H, stride, units.count);
}

void gru_forward_cpu(Recurrence r)
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

void gru_backward_cpu(Recurrence r)
{
    recurrence_backward(r, gru_cell_backward);
}

/* da_n <- dm */
void gru_hidden_gates_cpu(Recurrence r)
{
#pragma omp parallel for schedule(static) num_threads(threads_for(r.B *r.N *r.H, 0.2))
    for (int64_t row = 0; row < r.B * r.N; row++)
        memcpy(r.gates + (row * 3 + 2) * r.H, r.saved + row * r.H, (size_t)r.H * sizeof(Real));
}

static void forward(Device *device, Recurrence r)
{
    DEVICE_CALL(device, gru_forward, (r));
}

static void backward(Device *device, Recurrence r)
{
    DEVICE_CALL(device, gru_backward, (r));
}

static void hidden_gates(Device *device, Recurrence r)
{
    DEVICE_CALL(device, gru_hidden_gates, (r));
}

Tensor *op_gru(Tape *tape, Tensor *x, Tensor *weight_ih, Tensor *weight_hh, Tensor *bias_ih,
               Tensor *bias_hh, GruOptions options, Tensor **final_hidden)
{
    static const RecurrentKind gru = {
        RECURRENT_LABELS("op_gru"), 3, false, forward, backward, hidden_gates
    };
    return recurrent(tape, &gru,
                     (RecurrentInputs){ x, weight_ih, weight_hh, bias_ih, bias_hh, options.lengths,
                                        options.hidden, NULL, options.reverse },
                     final_hidden, NULL);
}
