/* Clipping by the norm of all gradients (Pascanu, Mikolov, Bengio 2013, algorithm 1): one pass over
 * the flat buffer for the norm, one for g <- g maximum_norm / norm. */
#include "nn/internal.h"

#include "ops/internal.h"

/* In double and in parts that do not depend on the number of threads, so that neither does the
 * sum's rounding. */
static double sum_of_squares_cpu(const Real *x, int64_t n)
{
    enum { PARTS = 256 };
    double parts[PARTS], total = 0;
    const int64_t length = (n + PARTS - 1) / PARTS;
#pragma omp parallel for schedule(static) if (n >= PARALLEL_MINIMUM)
    for (int part = 0; part < PARTS; part++) {
        const int64_t start = part * length, end = start + length < n ? start + length : n;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++)
            sum += (double)x[i] * (double)x[i];
        parts[part] = sum;
    }
    for (int part = 0; part < PARTS; part++)
        total += parts[part];
    return total;
}

static void scale_in_place_cpu(Real *x, int64_t n, Real factor)
{
    PARALLEL_FOR(i, n) {
        x[i] *= factor;
    }
}

Real params_clip_gradients(Params *params, Real maximum_norm)
{
    if (!(maximum_norm > 0))
        error_raise("params_clip_gradients: the maximum norm is %g, expected more than 0",
                    (double)maximum_norm);
    Device *device = params_device(params);
    Real *gradients = params_flat_gradients(params);
    const int64_t n = params_flat_count(params);
    double norm = sqrt(DEVICE_CALL(device, sum_of_squares, (gradients, n)));
    if (isfinite(norm) && norm > (double)maximum_norm)
        DEVICE_CALL(device, scale_in_place, (gradients, n, (Real)((double)maximum_norm / norm)));
    return (Real)norm;
}
