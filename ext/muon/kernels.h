/* Muon's kernels. */
#ifndef TAPEGRAD_MUON_KERNELS_H
#define TAPEGRAD_MUON_KERNELS_H

#include "extend.h"

/* The role of weights whose steps are Muon's; role 0 has AdamW's. */
enum { MUON_MATRIX = 1 };

typedef struct MuonKernels {
    /* u [n], the direction of a matrix */
    void (*momentum)(Real *u, const Real *m, const Real *gradients, Real momentum, Real nesterov,
                     int64_t n);
    /* x [n] /= its norm, of squares->parts */
    void (*normalize)(Real *x, const Clipping *squares, int64_t n);
    /* p [n, n] = scale (a I + b gram + c p) */
    void (*polynomial)(Real *p, const Real *gram, Real scale, int64_t n);
    /* the step of all weights, with matrices' directions in v; scalars->own is their role */
    void (*step)(Real *p, Real *m, Real *v, const Real *gradients, const StepScalars *scalars,
                 int64_t n);
} MuonKernels;
extern const MuonKernels muon_plain, muon_cuda;
C_FUNCTION const MuonKernels *muon_kernels(Device *device);

/* u = (1 - nesterov) g + nesterov m', with m' = momentum m + (1 - momentum) g. nesterov is 1
 * without Nesterov's momentum, else momentum. */
SHARED_FUNCTION Real muon_direction(Real m, Real g, Real momentum, Real nesterov)
{
    const Real mean = momentum * m + (1 - momentum) * g;
    return (1 - nesterov) * g + nesterov * mean;
}

/* An element of scale (a I + b A + c A^2), from the elements of A and A^2. */
SHARED_FUNCTION Real muon_coefficients(Real gram, Real squared, bool diagonal, Real scale)
{
    const Real a = (Real)3.4445, b = (Real)-4.7750, c = (Real)2.0315;
    return scale * ((diagonal ? a : 0) + b * gram + c * squared);
}

/* A matrix whose norm is less is divided by this. */
#define MUON_MIN_NORM 1e-30

#endif
