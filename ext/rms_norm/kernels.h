/* The kernels of op_rms_norm and op_l2_normalize. */
#ifndef TAPEGRAD_RMS_NORM_KERNELS_H
#define TAPEGRAD_RMS_NORM_KERNELS_H

#include "extend.h"

typedef struct RmsNormArguments {
    const Real *x;      /* [R, C], activations */
    const Real *weight; /* [C], Real, or NULL: ones */
    Real s;             /* 1 / C; of l2_normalize 1 */
    Real eps;           /* the backward pass does not read it */
    Real *r;            /* [R]: written forward, read backward */
    int64_t R, C;
} RmsNormArguments;

typedef struct RmsNormKernels {
    /* out [R, C] = rms_norm or l2_normalize of each row of x; writes r */
    void (*forward)(Real *out, RmsNormArguments norm);
    /* dx [R, C], dweight [C], Real, <- the gradients, from dout [R, C] */
    void (*backward)(Gradient dx, Gradient dweight, const Real *dout, RmsNormArguments norm);
} RmsNormKernels;
extern const RmsNormKernels rms_norm_plain, rms_norm_cpu, rms_norm_cpu_bf16, rms_norm_cuda,
    rms_norm_cuda_bf16;
C_FUNCTION const RmsNormKernels *rms_norm_kernels(const Tensor *x);

/* On the CPU, too. */
C_FUNCTION void rms_norm_forward_plain(Real *out, RmsNormArguments norm);

SHARED_FUNCTION Real weight_or_one(const Real *weight, int64_t c)
{
    return weight ? weight[c] : 1;
}

#endif
