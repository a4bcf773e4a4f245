/* Gradient clipping by the global norm (Pascanu, Mikolov, Bengio 2013, algorithm 1): one pass over
 * the flat buffer computes the norm, a second one g <- g maximum_norm / norm. */
#include "nn/internal.h"

#include "ops/shared/internal.h"

/* Sums in double, in a fixed number of parts: the rounding does not depend on the number of
 * threads. */
void sum_squares_cpu(Clipping *clipping, const Real *x, int64_t n)
{
    const int64_t length = (n + CLIP_PARTS - 1) / CLIP_PARTS;
#pragma omp parallel for schedule(static) num_threads(threads_for(n, 0.1))
    for (int part = 0; part < CLIP_PARTS; part++) {
        const int64_t start = part * length, end = start + length < n ? start + length : n;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = start; i < end; i++)
            sum += (double)x[i] * (double)x[i];
        clipping->parts[part] = sum;
    }
}

void clip_gradients_cpu(Real *x, Clipping *clipping, Real maximum_norm, int64_t n)
{
    double total = 0;
    for (int part = 0; part < CLIP_PARTS; part++)
        total += clipping->parts[part];
    const double norm = sqrt(total);
    clipping->norm = norm;
    clipping->done = true;
    if (!(isfinite(norm) && norm > (double)maximum_norm))
        return;
    const Real factor = (Real)((double)maximum_norm / norm);
    PARALLEL_FOR(i, n) {
        x[i] *= factor;
    }
}

void params_clip_gradients(Params *params, double maximum_norm)
{
    if (!((Real)maximum_norm > 0))
        error_raise("params_clip_gradients: the maximum norm is %g, expected more than 0",
                    maximum_norm);
    if (params_lacks_gradients(params))
        error_raise("params_clip_gradients: no weight has a gradient; call it after tape_backward, "
                    "before optim_step");
    Device *device = params_device(params);
    Real *gradients = params_flat_gradients(params)->data;
    Clipping *clipping = params_clipping(params);
    const int64_t n = params_flat_count(params);
    DEVICE_CALL(device, sum_squares, (clipping, gradients, n));
    DEVICE_CALL(device, clip_gradients, (gradients, clipping, (Real)maximum_norm, n));
    *params_clipped(params) = true;
}

double params_gradient_norm(const Params *params)
{
    Clipping clipping = { .done = false };
    if (params_clipping(params))
        device_copy_out(params_device(params), &clipping, params_clipping(params), sizeof clipping);
    if (!clipping.done)
        error_raise("params_gradient_norm: there is no norm yet; call params_clip_gradients first");
    return clipping.norm;
}
