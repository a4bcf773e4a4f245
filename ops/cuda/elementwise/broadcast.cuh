/* A broadcast input of map(): see broadcast.h. */
#ifndef TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_CUH
#define TAPEGRAD_OPS_ELEMENTWISE_BROADCAST_CUH

#include "ops/elementwise/broadcast.h"
#include "ops/cuda/shared/map.cuh"

/* Element e = [o, p, m, q, i] is x[p, q]. */
template <typename T> struct BroadcastInput {
    const T *x;
    Broadcast b;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x) && (b.I == 1 ? b.Q : b.I) % LANES == 0;
    }
    __device__ int64_t offset(int64_t e) const
    {
        const int64_t row_q = b.I == 1 ? e : quotient(e, b.I);
        if (row_q < b.Q)
            return row_q;
        const int64_t row = quotient(row_q, b.Q), q = row_q - row * b.Q;
        return b.P == 1 ? q : remainder_of(quotient(row, b.M), b.P) * b.Q + q;
    }
    __device__ Real at(int64_t e) const
    {
        return load(&x[offset(e)]);
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t e) const
    {
        if (b.I == 1)
            return load_pack<LANES>(&x[offset(e)]);
        const Real value = at(e);
        Reals<LANES> result;
#pragma unroll
        for (int k = 0; k < LANES; k++)
            result.value[k] = value;
        return result;
    }
};

/* An activation, as an argument of map(). */
struct Broadcasted {
    const Real *x;
    Broadcast b;
};

template <typename T> static inline BroadcastInput<T> input_of(Broadcasted input)
{
    return { (const T *)input.x, input.b };
}

#endif
