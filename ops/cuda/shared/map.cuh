/* Elementwise operations: out[i] <- f(element i of an input, element i of another, ...).
 *
 * f is a struct with an operator() that takes one Real per input:
 *
 *     map(MultiplyForward(), out, false, n, Repeated{ a, na }, Repeated{ b, nb });
 *
 * Threads read and write 16 bytes of out's dtype at once if every input allows it. */
#ifndef TAPEGRAD_OPS_SHARED_MAP_CUH
#define TAPEGRAD_OPS_SHARED_MAP_CUH

#include "tensor/cuda/kernel.cuh"

/* -------------------------------------------------------------------------------------- vectors */

/* Consecutive elements that one instruction loads or stores. */
template <typename T, int LANES>
struct alignas(LANES * sizeof(T) < 16 ? LANES * sizeof(T) : 16) Pack {
    T value[LANES];
};

template <int LANES> struct Reals {
    Real value[LANES];
};

/* Elements per 16 bytes. */
template <typename T> constexpr int lanes_of = 16 / (int)sizeof(T);

/* Whether x, and so every LANES-th element from there, is aligned for packs. */
template <int LANES, typename T> static inline bool packs_fit(const T *x)
{
    return (uintptr_t)x % alignof(Pack<T, LANES>) == 0;
}

template <int LANES, typename T> __device__ static inline Reals<LANES> load_pack(const T *x)
{
    const Pack<T, LANES> pack = *(const Pack<T, LANES> *)x;
    Reals<LANES> result;
#pragma unroll
    for (int k = 0; k < LANES; k++)
        result.value[k] = load(&pack.value[k]);
    return result;
}

template <int LANES, typename T>
__device__ static inline void contribute_pack(T *out, bool accumulate, Reals<LANES> value)
{
    Pack<T, LANES> pack;
    if (accumulate)
        pack = *(const Pack<T, LANES> *)out;
#pragma unroll
    for (int k = 0; k < LANES; k++)
        contribute(&pack.value[k], accumulate, value.value[k]);
    *(Pack<T, LANES> *)out = pack;
}

/* i / m and i mod m for nonnegative i and m, in 32 bits if both fit: a 32-bit division takes a
 * quarter of the time. */
__device__ static inline int64_t quotient(int64_t i, int64_t m)
{
    return (i | m) >> 32 ? i / m : (int64_t)((uint32_t)i / (uint32_t)m);
}
__device__ static inline int64_t remainder_of(int64_t i, int64_t m)
{
    return (i | m) >> 32 ? i % m : (int64_t)((uint32_t)i % (uint32_t)m);
}

/* --------------------------------------------------------------------------------------- inputs
 * An input is a struct with
 *   fits<LANES>()   on the host: whether pack() may be called
 *   at(i)           element i
 *   pack<LANES>(i)  elements i, ..., i + LANES - 1; i is a multiple of LANES */

/* Broadcast input x [count] of dtype T: element i is x[i mod count]. */
template <typename T> struct RepeatedInput {
    const T *x;
    int64_t count;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x) && count % LANES == 0;
    }
    __device__ int64_t offset(int64_t i) const
    {
        return i < count ? i : remainder_of(i, count);
    }
    __device__ Real at(int64_t i) const
    {
        return load(&x[offset(i)]);
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t i) const
    {
        return load_pack<LANES>(&x[offset(i)]);
    }
};

/* Input x [n] of dtype T: element i is x[i]. */
template <typename T> struct WholeInput {
    const T *x;

    template <int LANES> bool fits() const
    {
        return packs_fit<LANES>(x);
    }
    __device__ Real at(int64_t i) const
    {
        return load(&x[i]);
    }
    template <int LANES> __device__ Reals<LANES> pack(int64_t i) const
    {
        return load_pack<LANES>(&x[i]);
    }
};

/* Callers of map() pass a pointer for an activation [n], Repeated for a broadcast activation
 * [count], or an input struct with a dtype of its own: RepeatedInput<Real> for a parameter. */
struct Repeated {
    const Real *x;
    int64_t count;
};

template <typename T> static inline WholeInput<T> input_of(const Real *x)
{
    return { (const T *)x };
}
template <typename T> static inline RepeatedInput<T> input_of(Repeated input)
{
    return { (const T *)input.x, input.count };
}
template <typename T, typename Input> static inline Input input_of(Input input)
{
    return input;
}

/* ------------------------------------------------------------------------------------------ map */

/* Functions f that several operations use. */
struct Identity {
    __device__ Real operator()(Real x) const
    {
        return x;
    }
};

struct ScaleBy {
    Real factor;
    __device__ Real operator()(Real x) const
    {
        return factor * x;
    }
};

template <typename F, int LANES, typename... Packs>
__device__ static inline Reals<LANES> map_packs(F f, Packs... x)
{
    Reals<LANES> result;
#pragma unroll
    for (int k = 0; k < LANES; k++)
        result.value[k] = f(x.value[k]...);
    return result;
}

/* The first `packs` packs of out, then the remaining elements one by one. */
template <typename F, typename T, typename... Inputs>
__global__ void map_kernel(F f, T *out, bool accumulate, int64_t packs, int64_t n, Inputs... x)
{
    constexpr int LANES = lanes_of<T>;
    GRID_FOR(p, packs)
        contribute_pack<LANES>(&out[p * LANES], accumulate,
                               map_packs<F, LANES>(f, x.template pack<LANES>(p * LANES)...));
    const int64_t done = packs * LANES;
    GRID_FOR(i, n - done)
        contribute(&out[done + i], accumulate, f(x.at(done + i)...));
}

template <typename T, typename F, typename... Inputs>
static void map_inputs(F f, T *out, bool accumulate, int64_t n, Inputs... x)
{
    constexpr int LANES = lanes_of<T>;
    const bool wide = (packs_fit<LANES>(out) && ... && x.template fits<LANES>());
    const int64_t packs = wide ? n / LANES : 0;
    LAUNCH((map_kernel<F, T, Inputs...>), blocks_for(wide ? packs + 1 : n), THREADS, 0, f, out,
           accumulate, packs, n, x...);
}

/* out [n] <- f(x...); out is an activation. */
template <typename F, typename... Inputs>
static void map(TensorType type, F f, Real *out, bool accumulate, int64_t n, Inputs... x)
{
    BY_STORAGE(type, T, map_inputs(f, (T *)out, accumulate, n, input_of<T>(x)...));
}

#endif
