#include "ext/recurrent/cuda/recurrence.cuh"

__global__ void lstm_step(Recurrence r, int64_t step, const Real *products)
{
    const int64_t H = r.H;
    GRID_FOR(unit, r.B * H) {
        const int64_t b = unit / H, j = unit % H, position = position_of(&r, b, step);
        if (position < 0) {
            r.out[(b * r.N + step) * H + j] = 0;
            continue;
        }
        const int64_t row = b * r.N + position;
        Real *gates = r.gates + row * 4 * H + j, a[4];
        for (int k = 0; k < 4; k++)
            a[k] = gates[k * H] + products[(b * 4 + k) * H + j] +
                   (r.bias_ih[k * H + j] + r.bias_hh[k * H + j]);
        const Real i = real_sigmoid(a[0]), f = real_sigmoid(a[1]), candidate = real_tanh(a[2]);
        const Real o = real_sigmoid(a[3]), c = f * r.cell[unit] + i * candidate;
        gates[0] = i;
        gates[H] = f;
        gates[2 * H] = candidate;
        gates[3 * H] = o;
        r.cell[unit] = r.saved[row * H + j] = c;
        r.hidden[unit] = r.out[row * H + j] = o * real_tanh(c);
    }
}

__global__ void lstm_step_backward(Recurrence r, int64_t step, Real *dgates)
{
    const int64_t H = r.H;
    GRID_FOR(unit, r.B * H) {
        const int64_t b = unit / H, j = unit % H, position = position_of(&r, b, step);
        if (position < 0) {
            clear_unit(&r, b, step, j, dgates);
            continue;
        }
        const int64_t row = b * r.N + position;
        Real *gates = r.gates + row * 4 * H + j, *copy = dgates + b * 4 * H + j;
        const Real *cells = r.saved + row * H + j;
        const Real i = gates[0], f = gates[H], candidate = gates[2 * H], o = gates[3 * H];
        const Real initial = r.initial_cell ? r.initial_cell[unit] : 0;
        const Real before = step == 0 ? initial : cells[r.reverse ? H : -H];
        const Real tanh_c = real_tanh(*cells);
        const Real dh = r.dhidden[unit] + (r.dout ? r.dout[row * H + j] : 0);
        const Real dc = r.dcell[unit] + dh * o * (1 - tanh_c * tanh_c);
        copy[0] = gates[0] = dc * candidate * i * (1 - i);
        copy[H] = gates[H] = dc * before * f * (1 - f);
        copy[2 * H] = gates[2 * H] = dc * i * (1 - candidate * candidate);
        copy[3 * H] = gates[3 * H] = dh * tanh_c * o * (1 - o);
        r.dcell[unit] = dc * f;
        r.dhidden[unit] = 0;
    }
}

static void lstm_forward_cuda(Recurrence r)
{
    recurrence_forward(r, [&](int64_t step, const Real *products) {
        LAUNCH(lstm_step, blocks_for(r.B * r.H), THREADS, 0, r, step, products);
    });
}

static void lstm_backward_cuda(Recurrence r)
{
    recurrence_backward(r, [&](int64_t step, Real *dgates) {
        LAUNCH(lstm_step_backward, blocks_for(r.B * r.H), THREADS, 0, r, step, dgates);
    });
}

const CellKernels lstm_cuda = { lstm_forward_cuda, lstm_backward_cuda, NULL, previous_hidden_cuda };
