/* The arguments of batchnorm's kernels. */
#ifndef TAPEGRAD_IMAGES_BATCHNORM_H
#define TAPEGRAD_IMAGES_BATCHNORM_H

#include "extend.h"

typedef struct BatchNormArguments {
    const Real *x;                         /* [R, C], activations */
    const Real *weight, *bias;             /* [C]; the backward pass does not read bias */
    Real *mean, *r;                        /* [C]: written forward, read backward */
    Real *running_mean, *running_variance; /* [C]: only forward; updated in training, else read */
    double momentum;                       /* only forward */
    Real eps;                              /* likewise */
    bool training;
    int64_t R, C;
} BatchNormArguments;

/* Channel c's mean and r. In training they and the updates of the running ones come from the
 * batch's mean and its sum of (x_i - mean)^2, else from the running ones. */
MATH_FUNCTION void batchnorm_statistics(const BatchNormArguments *norm, int64_t c, double mean,
                                        double squares)
{
    const double m = norm->momentum, R = (double)norm->R;
    Real *running_mean = &norm->running_mean[c], *running_variance = &norm->running_variance[c];
    Real variance = *running_variance;
    if (norm->training) {
        *running_mean = (Real)((1 - m) * (double)*running_mean + m * mean);
        *running_variance = (Real)((1 - m) * (double)variance + m * squares / (R - 1));
        variance = (Real)(squares / R);
    }
    norm->mean[c] = norm->training ? (Real)mean : *running_mean;
    norm->r[c] = inverse_deviation(variance, norm->eps);
}

#endif
