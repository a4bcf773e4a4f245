/* Gradient clipping by the global norm (Pascanu, Mikolov, Bengio 2013, algorithm 1): one pass over
 * the flat buffer computes the norm, a second one g <- g maximum_norm / norm. */
#include "nn/internal.h"
#include "ops/kernels.h"

#include <math.h>

/* parts_k = sum of x_i^2 over the kth of CLIP_PARTS ranges. Their number is fixed, so the rounding
 * does not depend on the number of threads. */
void sum_squares_plain(Clipping *clipping, const Real *x, int64_t n)
{
    const int64_t length = (n + CLIP_PARTS - 1) / CLIP_PARTS;
    EACH_ROW(k, CLIP_PARTS, length) {
        const int64_t end = (k + 1) * length < n ? (k + 1) * length : n;
        double sum = 0;
        SUM(+, sum)
        for (int64_t i = k * length; i < end; i++)
            sum += (double)x[i] * (double)x[i];
        clipping->parts[k] = sum;
    }
}

void clip_gradients_plain(Real *g, Clipping *clipping, Real max_norm, int64_t n)
{
    double sum = 0;
    for (int k = 0; k < CLIP_PARTS; k++)
        sum += clipping->parts[k];
    const double norm = sqrt(sum);
    clipping->norm = norm;
    clipping->done = true;
    if (!(isfinite(norm) && norm > (double)max_norm))
        return;
    const Real factor = (Real)((double)max_norm / norm);
    EACH(i, n)
        g[i] *= factor;
}

/* clipping->parts = those of all processes, of which each has summed its own range. */
static void sum_over_processes(const Params *params, Clipping *clipping)
{
    Clipping own;
    device_copy_out(params->device, &own, clipping, sizeof own);
    for (int k = 1; k < CLIP_PARTS; k++) {
        own.parts[0] += own.parts[k];
        own.parts[k] = 0;
    }
    own.parts[0] = params->shards->sum(own.parts[0]);
    device_copy_in(params->device, clipping, &own, sizeof own);
}

/* The own range of the gradients, those of all processes */
static Real *gradients_to_clip(const char *function, Params *params, double maximum_norm)
{
    if (!((Real)maximum_norm > 0))
        error_raise("%s: the maximum norm is %g, expected more than 0", function, maximum_norm);
    return params_sum_gradients(function, params);
}

void params_clip_each_gradient(Params *params, double maximum_norm)
{
    Real *gradients = gradients_to_clip("params_clip_each_gradient", params, maximum_norm);
    const FlatRange own = params_range(params);
    const Kernels *kernels = op_kernels_on(params->device, TENSOR_REAL);
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        const int64_t first = params_offset(params, weight) - own.first, n = tensor_count(weight);
        if (first < 0 || first >= own.count) /* another process's */
            continue;
        kernels->sum_squares(params->clipping, gradients + first, n);
        kernels->clip_gradients(gradients + first, params->clipping, (Real)maximum_norm, n);
    }
    params_clip_gradients(params, INFINITY); /* the norm of all, for optim_step */
}

void params_clip_gradients(Params *params, double maximum_norm)
{
    Real *gradients = gradients_to_clip("params_clip_gradients", params, maximum_norm);
    Clipping *clipping = params->clipping;
    const int64_t n = params_range(params).count;
    const Kernels *kernels = op_kernels_on(params->device, TENSOR_REAL);
    kernels->sum_squares(clipping, gradients, n);
    if (params->shards)
        sum_over_processes(params, clipping);
    kernels->clip_gradients(gradients, clipping, (Real)maximum_norm, n);
    params->clipped = true;
}

double params_gradient_norm(const Params *params)
{
    Clipping clipping = { .done = false };
    if (params->clipping)
        device_copy_out(params->device, &clipping, params->clipping, sizeof clipping);
    if (!clipping.done)
        error_raise("params_gradient_norm: there is no norm yet; call params_clip_gradients first");
    return clipping.norm;
}
