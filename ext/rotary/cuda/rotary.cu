#include "ext/rotary/kernels.h"
#include "tensor/cuda/kernel.cuh"

__global__ void rotary_cos_sin(Real *cos_sin, const int32_t *positions, double base, int64_t P,
                               int64_t pairs)
{
    GRID_FOR(n, P * pairs) {
        const int64_t row = n / pairs, i = n % pairs;
        const double p = positions ? (double)positions[row] : (double)row;
        const double t = p * pow(base, -(double)i / (double)pairs);
        cos_sin[row * 2 * pairs + i] = (Real)cos(t);
        cos_sin[(row * 2 + 1) * pairs + i] = (Real)sin(t);
    }
}

template <typename T>
__global__ void rotate(T *out, bool accumulate, const T *x, const Real *cos_sin, Rotary r)
{
    GRID_FOR(n, r.R * r.H * r.D) {
        const int64_t c = n % r.D, row = n / (r.H * r.D);
        Real value = load(&x[n]);
        if (n / r.D % r.H < r.heads && c < 2 * r.pairs) {
            const int64_t i = r.halves ? c % r.pairs : c / 2;
            const bool second = r.halves ? c >= r.pairs : c % 2 == 1;
            const int64_t other = (second ? -1 : 1) * (r.halves ? r.pairs : 1);
            const Real *cosines = cos_sin + (r.first + row) % r.P * 2 * r.pairs;
            const Real sine = cosines[r.pairs + i];
            value = value * cosines[i] + load(&x[n + other]) * (second != r.inverse ? sine : -sine);
        }
        contribute(&out[n], accumulate, value);
    }
}

static void rotary_cos_sin_cuda(Real *cos_sin, const int32_t *positions, double base, int64_t P,
                                int64_t pairs)
{
    LAUNCH(rotary_cos_sin, blocks_for(P * pairs), THREADS, 0, cos_sin, positions, base, P, pairs);
}

static void rotary_rotate_cuda(TensorType type, Gradient out, const Real *x, const Real *cos_sin,
                               Rotary r)
{
    BY_STORAGE(type, T,
               LAUNCH(rotate<T>, blocks_for(r.R * r.H * r.D), THREADS, 0, (T *)out.data,
                      out.accumulate, (const T *)x, cos_sin, r));
}

template <TensorType type>
static constexpr RotaryKernels rotary_table = { rotary_cos_sin_cuda,
                                                call<rotary_rotate_cuda, type> };
const RotaryKernels rotary_cuda = rotary_table<TENSOR_REAL>;
const RotaryKernels rotary_cuda_bf16 = rotary_table<TENSOR_BF16>;
