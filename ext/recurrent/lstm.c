/* lstm: long short-term memory (Hochreiter and Schmidhuber 1997), with the forget gate of Gers,
 * Schmidhuber and Cummins 2000. Per step, from h and c of the step before (s: sigmoid):
 *   [i, f, c~, o] = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh   before their functions, H elements each
 *   i = s(i)    f = s(f)    c~ = tanh(c~)    o = s(o)
 *   c_t = f c_{t-1} + i c~
 *   h_t = o tanh(c_t)
 * Backpropagation through time: dh, dc are the gradients of h_t, c_t from all later steps. h_t is
 * also an output, and c_{t-1} enters c_t through f alone, so the error flows through time
 * multiplied by f, without a matrix product (the constant error carousel of 1997):
 *   dh <- dout_t                       dc <- dh o (1 - tanh^2 c_t)
 *   do = dh tanh(c_t) o (1 - o)        before the functions: s' = s (1 - s), tanh' = 1 - tanh^2
 *   di = dc c~ i (1 - i)
 *   df = dc c_{t-1} f (1 - f)
 *   dc~ = dc i (1 - c~^2)
 *   dc_{t-1} = dc f
 *   dh_{t-1} = W_hh^T [di, df, dc~, do]
 * From the last step to the first: dh of a sequence begins as the gradient of its final state.
 * recurrence.c has the gradients of x, weights and biases. Saved: the gates and c. */
#include "ext/recurrent/kernels.h"

static void lstm_forward_plain(Recurrence r)
{
    const int64_t H = r.H;
    EACH_ROW(b, r.B, r.N * 4 * H * H) {
        Real *h = r.hidden + b * H, *c = r.cell + b * H;
        for (int64_t step = 0; step < length_of(&r, b); step++) {
            const int64_t row = b * r.N + position_of(&r, b, step);
            Real *a = r.gates + row * 4 * H; /* W_ih x_t; then i, f, c~, o */
            for (int64_t k = 0; k < 4 * H; k++)
                a[k] += r.bias_ih[k] + hidden_product(&r, k, h);
            for (int64_t j = 0; j < H; j++) {
                const Real i = a[j] = real_sigmoid(a[j]), f = a[H + j] = real_sigmoid(a[H + j]);
                const Real candidate = a[2 * H + j] = real_tanh(a[2 * H + j]);
                const Real o = a[3 * H + j] = real_sigmoid(a[3 * H + j]);
                r.saved[row * H + j] = c[j] = f * c[j] + i * candidate;
                r.out[row * H + j] = h[j] = o * real_tanh(c[j]);
            }
        }
        zero_after_end(&r, b, r.out, H);
    }
}

static void lstm_backward_plain(Recurrence r)
{
    const int64_t H = r.H;
    EACH_ROW(b, r.B, r.N * 4 * H * H) {
        Real *dh = r.dhidden + b * H, *dc = r.dcell + b * H;
        for (int64_t step = length_of(&r, b) - 1; step >= 0; step--) {
            const int64_t row = b * r.N + position_of(&r, b, step);
            Real *a = r.gates + row * 4 * H; /* i, f, c~, o; then di, df, dc~, do */
            const Real *c = r.saved + row * H, *c_before = c + (r.reverse ? H : -H);
            if (step == 0)
                c_before = r.initial_cell ? r.initial_cell + b * H : NULL;
            for (int64_t j = 0; j < H; j++) {
                const Real i = a[j], f = a[H + j], candidate = a[2 * H + j], o = a[3 * H + j];
                const Real tanh_c = real_tanh(c[j]);
                dh[j] += r.dout ? r.dout[row * H + j] : 0;
                dc[j] += dh[j] * o * (1 - tanh_c * tanh_c);
                a[j] = dc[j] * candidate * i * (1 - i);
                a[H + j] = dc[j] * (c_before ? c_before[j] : 0) * f * (1 - f);
                a[2 * H + j] = dc[j] * i * (1 - candidate * candidate);
                a[3 * H + j] = dh[j] * tanh_c * o * (1 - o);
                dc[j] *= f;
                dh[j] = 0;
            }
            add_hidden_gradient(&r, dh, 0, 4 * H, a);
        }
        zero_after_end(&r, b, r.gates, 4 * H);
    }
}

const CellKernels lstm_plain = { lstm_forward_plain, lstm_backward_plain, NULL,
                                 previous_hidden_plain };

Tensor *op_lstm(Tape *tape, Tensor *x, RecurrentWeights weights, LstmOptions options,
                Tensor **final_hidden, Tensor **final_cell)
{
    static const RecurrentKind lstm = { RECURRENT_LABELS("op_lstm"), 4, true, lstm_kernels };
    return recurrent(tape, &lstm,
                     (RecurrentInputs){ x, weights, options.lengths, options.hidden, options.cell,
                                        options.reverse },
                     final_hidden, final_cell);
}
