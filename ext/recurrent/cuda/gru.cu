#include "ext/recurrent/cuda/recurrence.cuh"

__global__ void gru_step(Recurrence r, int64_t step, const Real *products)
{
    const int64_t H = r.H;
    GRID_FOR(unit, r.B * H) {
        const int64_t b = unit / H, j = unit % H, position = position_of(&r, b, step);
        if (position < 0) {
            r.out[(b * r.N + step) * H + j] = 0;
            continue;
        }
        const int64_t row = b * r.N + position;
        Real *gates = r.gates + row * 3 * H + j;
        const Real *sums = products + b * 3 * H + j;
        const Real *bias_ih = r.bias_ih + j, *bias_hh = r.bias_hh + j;
        const Real reset = real_sigmoid(gates[0] + sums[0] + (bias_ih[0] + bias_hh[0]));
        const Real z = real_sigmoid(gates[H] + sums[H] + (bias_ih[H] + bias_hh[H]));
        const Real m = sums[2 * H] + bias_hh[2 * H];
        const Real n = real_tanh(gates[2 * H] + bias_ih[2 * H] + reset * m);
        gates[0] = reset;
        gates[H] = z;
        gates[2 * H] = n;
        r.saved[row * H + j] = m;
        r.hidden[unit] = r.out[row * H + j] = n + z * (r.hidden[unit] - n);
    }
}

__global__ void gru_step_backward(Recurrence r, int64_t step, Real *dgates)
{
    const int64_t H = r.H;
    GRID_FOR(unit, r.B * H) {
        const int64_t b = unit / H, j = unit % H, position = position_of(&r, b, step);
        if (position < 0) {
            clear_unit(&r, b, step, j, dgates);
            continue;
        }
        const int64_t row = b * r.N + position;
        Real *gates = r.gates + row * 3 * H + j, *copy = dgates + b * 3 * H + j;
        Real *saved = r.saved + row * H + j;
        const Real reset = gates[0], z = gates[H], n = gates[2 * H], m = *saved;
        const Real dh = r.dhidden[unit] + (r.dout ? r.dout[row * H + j] : 0);
        const Real da_n = dh * (1 - z) * (1 - n * n);
        copy[0] = gates[0] = da_n * m * reset * (1 - reset);
        copy[H] = gates[H] = dh * (r.previous[row * H + j] - n) * z * (1 - z);
        gates[2 * H] = da_n;
        copy[2 * H] = *saved = da_n * reset;
        r.dhidden[unit] = dh * z;
    }
}

__global__ void gru_hidden_gates(Recurrence r)
{
    GRID_FOR(i, r.B * r.N * r.H)
        r.gates[(i / r.H * 3 + 2) * r.H + i % r.H] = r.saved[i];
}

static void gru_forward_cuda(Recurrence r)
{
    recurrence_forward(r, [&](int64_t step, const Real *products) {
        LAUNCH(gru_step, blocks_for(r.B * r.H), THREADS, 0, r, step, products);
    });
}

static void gru_backward_cuda(Recurrence r)
{
    recurrence_backward(r, [&](int64_t step, Real *dgates) {
        LAUNCH(gru_step_backward, blocks_for(r.B * r.H), THREADS, 0, r, step, dgates);
    });
}

static void gru_hidden_gates_cuda(Recurrence r)
{
    LAUNCH(gru_hidden_gates, blocks_for(r.B * r.N * r.H), THREADS, 0, r);
}

const CellKernels gru_cuda = { gru_forward_cuda, gru_backward_cuda, gru_hidden_gates_cuda,
                               previous_hidden_cuda };
