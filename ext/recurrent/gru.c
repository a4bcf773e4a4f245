/* gru: gated recurrent units (Cho et al. 2014), with the two biases of PyTorch's. Per step, from h
 * of the step before (s: sigmoid):
 *   r = s(W_ir x_t + b_ir + W_hr h_{t-1} + b_hr)    z = s(W_iz x_t + b_iz + W_hz h_{t-1} + b_hz)
 *   m = W_hn h_{t-1} + b_hn                         n = tanh(W_in x_t + b_in + r m)
 *   h_t = (1 - z) n + z h_{t-1} = n + z (h_{t-1} - n)
 * Backpropagation through time: dh is the gradient of h_t from all later steps. h_{t-1} enters h_t
 * directly, multiplied by z, and by the three products:
 *   dh <- dout_t
 *   da_n = dh (1 - z) (1 - n^2)            before the functions: s' = s (1 - s), tanh' = 1 - tanh^2
 *   dm   = da_n r
 *   dr   = da_n m r (1 - r)
 *   dz   = dh (h_{t-1} - n) z (1 - z)
 *   dh_{t-1} = dh z + W_hh^T [dr, dz, dm]
 * From the last step to the first: dh of a sequence begins as the gradient of its final state.
 * W_ih x_t has the gradient [dr, dz, da_n], and W_hh h_{t-1} has [dr, dz, dm]; recurrence.c has the
 * gradients of x, weights and biases. Saved: r, z, n and m. */
#include "ext/recurrent/kernels.h"

static void gru_forward_plain(Recurrence r)
{
    const int64_t H = r.H;
    EACH_ROW(b, r.B, r.N * 3 * H * H) {
        Real *h = r.hidden + b * H;
        for (int64_t step = 0; step < length_of(&r, b); step++) {
            const int64_t row = b * r.N + position_of(&r, b, step);
            Real *a = r.gates + row * 3 * H, *m = r.saved + row * H; /* W_ih x_t; then r, z, n */
            for (int64_t k = 0; k < 2 * H; k++)
                a[k] += r.bias_ih[k] + hidden_product(&r, k, h);
            for (int64_t j = 0; j < H; j++)
                m[j] = hidden_product(&r, 2 * H + j, h);
            for (int64_t j = 0; j < H; j++) {
                const Real reset = a[j] = real_sigmoid(a[j]);
                const Real z = a[H + j] = real_sigmoid(a[H + j]);
                const Real n = real_tanh(a[2 * H + j] + r.bias_ih[2 * H + j] + reset * m[j]);
                a[2 * H + j] = n;
                r.out[row * H + j] = h[j] = n + z * (h[j] - n);
            }
        }
        zero_after_end(&r, b, r.out, H);
    }
}

static void gru_backward_plain(Recurrence r)
{
    const int64_t H = r.H;
    EACH_ROW(b, r.B, r.N * 3 * H * H) {
        Real *dh = r.dhidden + b * H;
        for (int64_t step = length_of(&r, b) - 1; step >= 0; step--) {
            const int64_t row = b * r.N + position_of(&r, b, step);
            const Real *h_before = r.previous + row * H;
            Real *a = r.gates + row * 3 * H, *m = r.saved + row * H; /* then dr, dz, da_n and dm */
            for (int64_t j = 0; j < H; j++) {
                const Real reset = a[j], z = a[H + j], n = a[2 * H + j];
                dh[j] += r.dout ? r.dout[row * H + j] : 0;
                const Real da_n = dh[j] * (1 - z) * (1 - n * n);
                a[j] = da_n * m[j] * reset * (1 - reset);
                a[H + j] = dh[j] * (h_before[j] - n) * z * (1 - z);
                a[2 * H + j] = da_n;
                m[j] = da_n * reset;
                dh[j] *= z;
            }
            add_hidden_gradient(&r, dh, 0, 2 * H, a); /* dr, dz */
            add_hidden_gradient(&r, dh, 2 * H, H, m); /* dm */
        }
        zero_after_end(&r, b, r.gates, 3 * H);
        zero_after_end(&r, b, r.saved, H);
    }
}

/* da_n <- dm */
void gru_hidden_gates_plain(Recurrence r)
{
    EACH_ROW(row, r.B * r.N, r.H) {
        for (int64_t j = 0; j < r.H; j++)
            r.gates[(row * 3 + 2) * r.H + j] = r.saved[row * r.H + j];
    }
}

const CellKernels gru_plain = { gru_forward_plain, gru_backward_plain, gru_hidden_gates_plain,
                                previous_hidden_plain };

Tensor *op_gru(Tape *tape, Tensor *x, RecurrentWeights weights, GruOptions options,
               Tensor **final_hidden)
{
    static const RecurrentKind gru = { RECURRENT_LABELS("op_gru"), 3, false, gru_kernels };
    return recurrent(
        tape, &gru,
        (RecurrentInputs){ x, weights, options.lengths, options.hidden, NULL, options.reverse },
        final_hidden, NULL);
}
