#include "ops/cuda/elementwise/dropout.cuh"
#include "ops/cuda/shared/layernorm.cuh"

/* The rows s = x + m branch, a Rows of ops/cuda/shared/layernorm.cuh. */
template <typename T> struct ResidualRows {
    const T *x, *branch;
    DropoutDraw d;
    T *dx, *dbranch; /* or NULL */
    bool accumulate_x, accumulate_branch;

    template <int W> bool fits() const
    {
        return packs_fit<W>(x) && packs_fit<W>(branch) && packs_fit<W>(dx) && packs_fit<W>(dbranch);
    }
    template <int W> __device__ Reals<W> read(int64_t i, unsigned *kept) const
    {
        Reals<W> s = load_pack<W>(&x[i]);
        const Reals<W> b = load_pack<W>(&branch[i]);
        *kept = draw_kept(d, i / 4) >> i % 4 & ((1u << W) - 1);
#pragma unroll
        for (int k = 0; k < W; k++)
            s.value[k] += dropped(d, *kept, k, b.value[k]);
        return s;
    }
    template <int W> __device__ void add_gradient(int64_t i, unsigned kept, Reals<W> ds) const
    {
        if (dx)
            contribute_pack<W>(&dx[i], accumulate_x, ds);
#pragma unroll
        for (int k = 0; k < W; k++)
            ds.value[k] = dropped(d, kept, k, ds.value[k]);
        if (dbranch)
            contribute_pack<W>(&dbranch[i], accumulate_branch, ds);
    }
};

extern "C" void residual_layernorm_forward_cuda(TensorType type, Real *out, NormArguments norm,
                                                Residual residual)
{
    BY_STORAGE(type, T,
               layernorm_forward((T *)out, norm.statistics,
                                 ResidualRows<T>{ (const T *)norm.x, (const T *)residual.branch,
                                                  residual.draw, NULL, NULL, false, false },
                                 norm.weight, norm.bias, norm.eps, norm.R, norm.C));
}

extern "C" void residual_layernorm_backward_cuda(TensorType type, Gradient dx, Gradient dbranch,
                                                 Gradient dweight, Gradient dbias, const Real *dout,
                                                 NormArguments norm, Residual residual)
{
    BY_STORAGE(type, T,
               layernorm_backward(ResidualRows<T>{ (const T *)norm.x, (const T *)residual.branch,
                                                   residual.draw, (T *)dx.data, (T *)dbranch.data,
                                                   dx.accumulate, dbranch.accumulate },
                                  dweight, dbias, (const T *)dout, norm));
}
