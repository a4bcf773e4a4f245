#include "ext/recurrent/kernels.h"
#include "tensor/cuda/kernel.cuh"

__global__ void previous_hidden(Real *previous, const Real *initial, Recurrence r)
{
    GRID_FOR(i, r.B * r.N * r.H) {
        const int64_t j = i % r.H, step = i / r.H % r.N, b = i / r.H / r.N;
        const int64_t position = position_of(&r, b, step), before = r.reverse ? 1 : -1;
        const int64_t row = b * r.N + (position < 0 ? step : position);
        Real h = 0;
        if (position >= 0 && step > 0)
            h = r.out[(row + before) * r.H + j];
        else if (position >= 0 && initial)
            h = initial[b * r.H + j];
        previous[row * r.H + j] = h;
    }
}

extern "C" void previous_hidden_cuda(Real *previous, const Real *initial, Recurrence r)
{
    LAUNCH(previous_hidden, blocks_for(r.B * r.N * r.H), THREADS, 0, previous, initial, r);
}
