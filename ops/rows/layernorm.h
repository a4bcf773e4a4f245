/* The arguments of layernorm and residual_layernorm. */
#ifndef TAPEGRAD_OPS_ROWS_LAYERNORM_H
#define TAPEGRAD_OPS_ROWS_LAYERNORM_H

#include "autograd/tape.h"
#include "ops/elementwise/dropout.h"
#include "ops/shared/math.h"

/* Of one row, saved for the backward pass: the mean, and r = 1 / sqrt(variance + eps). */
typedef struct Statistics {
    Real mean, r;
} Statistics;

/* r; NaN where the variance overflows: 1 / infinity = 0 would normalize such a row to the bias. */
MATH_FUNCTION Real inverse_deviation(Real variance, Real eps)
{
    return variance < (Real)INFINITY ? 1 / real_sqrt(variance + eps) : (Real)NAN;
}

typedef struct NormArguments {
    const Real *x;          /* [R, C], activations */
    const Real *weight;     /* [C] */
    const Real *bias;       /* [C]; the backward pass does not read it */
    Real eps;               /* nor this */
    Statistics *statistics; /* [R]: written forward, read backward */
    int64_t R, C;
} NormArguments;

/* What residual_layernorm adds to x: dropout(branch). */
typedef struct Residual {
    const Real *branch; /* [R, C], activations */
    DropoutDraw draw;
} Residual;

/* A constant [C] of this value, for a missing weight or bias of rows x [..., C]. */
Tensor *layernorm_constant(Tape *tape, const Tensor *x, Real value);

/* Raises in the operation's name unless weight and bias are [C], as x's rows, and eps > 0. */
void layernorm_check(Tape *tape, const char *operation, const Tensor *x, const Tensor *weight,
                     const Tensor *bias, double eps);

/* The arguments; statistics has those of the forward pass. bias may be NULL in the backward
 * pass. */
NormArguments layernorm_arguments(const Tensor *x, const Tensor *weight, const Tensor *bias,
                                  const Tensor *statistics, double eps);

#endif
