/* A sharded optimizer (ZeRO-1: Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training
 * Trillion Parameter Models, section 5.1). With w_r and g_r the weight and the gradients of rank r:
 *   reduce-scatter   rank r gets its own range of g = sum_r w_r g_r / sum_r w_r
 *   clip             |g|^2 = sum_r |g of r's own range|^2
 *   step             rank r's own range of the weights, which only it has m and v for
 *   all-gather       all ranges of the weights
 * An all-reduce consists of the same reduce-scatter and all-gather. Ranges end between weights,
 * joined ones undivided, so that Muon's matrices are whole. */
#include "distributed/internal.h"
#include "ops/kernels.h"

#include <stdio.h>
#include <stdlib.h>

/* In Params, behind its Shards. */
typedef struct Division {
    Shards shards;
    int ranks;
    double weight;
    int64_t offsets[]; /* [ranks + 1], in elements of the flat buffers */
} Division;

static const Division *division_of(const char *function, const Params *params)
{
    const Division *division = (const Division *)params->shards;
    if (division->ranks != dist_ranks())
        error_raise("%s: the weights are divided among %d ranks, but there are %d; expected before "
                    "dist_finish",
                    function, division->ranks, dist_ranks());
    return division;
}

/* ----------------------------------------------------------------------------------- the ranges */

/* Ranges of about the same size: boundary r is the start of the weight that is nearest to count r /
 * ranks. Weights that are not joined start at multiples of 16 elements, as kernels expect. */
static void divide(const Params *params, int64_t *offsets, int ranks)
{
    int64_t boundary = 0;
    int i = 0;
    offsets[0] = 0;
    for (int r = 1; r < ranks; r++) {
        const double target = (double)params->flat_count * r / ranks;
        for (; i < params_count(params); i++) {
            const Tensor *weight = params_at(params, i);
            const int64_t start = params_offset(params, weight);
            if (weight->base && weight->base->data != weight->data)
                continue;
            if (fabs((double)start - target) > fabs((double)boundary - target))
                break;
            boundary = start;
        }
        if (fabs((double)params->flat_count - target) < fabs((double)boundary - target))
            boundary = params->flat_count;
        offsets[r] = boundary;
    }
    offsets[ranks] = params->flat_count;
}

static void bytes_of(const Division *division, int64_t *bytes)
{
    for (int r = 0; r <= dist_ranks(); r++)
        bytes[r] = division->offsets[r] * (int64_t)sizeof(Real);
}

/* ----------------------------------------------------------------------------- through host memory
 * Where the transport moves host memory only, a device's own memory is copied. */
static Real *host_copy(const char *function, const Params *params, const Real *flat)
{
    if (!device_is_cuda(params->device))
        return (Real *)flat;
    const size_t bytes = (size_t)params->flat_count * sizeof(Real);
    Real *host = memory_allocate(bytes);
    if (!host)
        error_raise("%s: %s", function, device_exhausted(params->device, bytes).text);
    if (flat)
        device_copy_out(params->device, host, flat, bytes);
    return host;
}

static void host_free(const Params *params, Real *host)
{
    if (device_is_cuda(params->device))
        free(host);
}

static void copy_back(const Params *params, Real *flat, const Real *host, FlatRange range)
{
    if (device_is_cuda(params->device))
        device_copy_in(params->device, flat + range.first, host + range.first,
                       (size_t)range.count * sizeof(Real));
}

/* ------------------------------------------------------------------------------------ functions */

/* The factor of this rank's gradients in their mean. */
static double share_of(const char *function, const Params *params)
{
    const bool has = params_have_gradients(params);
    const double own = has ? division_of(function, params)->weight : 0;
    double sums[] = { own, has };
    dist_sum(sums, 2);
    if (sums[1] == 0)
        params_raise_no_gradients(function);
    if (sums[0] == 0)
        error_raise("%s: the weights of all ranks are 0; see dist_set_weight", function);
    return own / sums[0];
}

static void reduce_gradients(const char *function, Params *params)
{
    if (device_is_capturing(params->device))
        error_raise("%s: this step is replayed, expected a step without tape_replay: it "
                    "exchanges gradients with other processes",
                    function);
    const Division *division = division_of(function, params);
    const double share = share_of(function, params);
    Real *gradients = params_flat_gradients(params)->data;
    op_kernels_on(params->device, TENSOR_REAL)
        ->unary_forward(UNARY_scale, gradients, gradients, (Constants){ (Real)share, 0 },
                        params->flat_count);
    if (dist_reduce_scatter_on(params->device, gradients, division->offsets))
        return;
    Real *host = host_copy(function, params, gradients);
    dist_reduce_scatter(host, division->offsets);
    copy_back(params, gradients, host, division->shards.own);
    host_free(params, host);
}

static double sum_over_ranks(double part)
{
    dist_sum(&part, 1);
    return part;
}

static void gather_ranges(const Params *params, Real *flat)
{
    int64_t bytes[DIST_MAX_RANKS + 1];
    bytes_of(division_of("optim_step", params), bytes);
    if (dist_all_gather_on(params->device, flat, bytes))
        return;
    Real *host = host_copy("optim_step", params, flat);
    dist_all_gather(host, bytes);
    copy_back(params, flat, host, (FlatRange){ 0, params->flat_count });
    host_free(params, host);
}

static void collect_ranges(const Params *params, Real *whole, const Real *part)
{
    const Division *division = division_of("optim_save", params);
    const FlatRange own = division->shards.own;
    const size_t own_bytes = (size_t)own.count * sizeof(Real);
    int64_t bytes[DIST_MAX_RANKS + 1];
    bytes_of(division, bytes);
    Real *host = memory_allocate((size_t)bytes[dist_ranks()]);
    if (!host)
        error_raise("optim_save: memory is exhausted");
    device_copy_out(params->device, host + own.first, part, own_bytes);
    dist_gather(host, bytes);
    if (whole)
        device_copy_in(params->device, whole, host, (size_t)bytes[dist_ranks()]);
    free(host);
}

static bool agree_all(bool ok, int64_t steps)
{
    enum { BYTES = 1024 };
    if (!dist_any(!ok)) {
        dist_need_equal("steps of the optimizers", &steps, sizeof steps);
        return true;
    }
    char *all = memory_allocate((size_t)dist_ranks() * BYTES);
    if (!all)
        error_raise("optim_save: memory is exhausted");
    memset(all, 0, (size_t)dist_ranks() * BYTES);
    if (!ok)
        snprintf(all + dist_rank() * BYTES, BYTES, "%s", tapegrad_error());
    dist_all_gather_rows(all, BYTES);
    bool agreed = true;
    for (int r = 0; agreed && r < dist_ranks(); r++)
        if (all[r * BYTES])
            agreed = error_report("rank %d: %s", r, all + r * BYTES);
    free(all);
    return agreed;
}

/* ------------------------------------------------------------------------------------ the ranks */

static void check_equal(const Optimizer *optimizer)
{
    const Params *params = optimizer->params;
    const int count = params_count(params);
    const bool cuda = device_is_cuda(params->device);
    dist_need_equal("kinds of devices", &cuda, sizeof cuda);
    dist_need_equal("optimizers", optimizer->kind->name, strlen(optimizer->kind->name));
    dist_need_equal("numbers of weights", &count, sizeof count);
    dist_need_equal("seeds of the weights", &params->seed, sizeof params->seed);
    const size_t bytes = (size_t)count * sizeof(Name);
    Name *names = memory_allocate(bytes);
    if (!names)
        error_raise("dist_optimizer: %s", device_exhausted(params->device, bytes).text);
    memset(names, 0, bytes);
    for (int i = 0; i < count; i++) {
        const Tensor *weight = params_at(params, i);
        snprintf(names[i].text, NAME_BYTES, "%s %s", shape_text(weight->shape).text, weight->name);
    }
    dist_need_equal("names and shapes of the weights", names, bytes);
    free(names);
}

/* Rank 0's weights to all. */
static void broadcast_weights(Params *params)
{
    int64_t offsets[DIST_MAX_RANKS + 1] = { 0 };
    const int64_t bytes = params->flat_count * (int64_t)sizeof(Real);
    for (int r = 1; r <= dist_ranks(); r++)
        offsets[r] = bytes;
    Real *values = params->flat_values.data;
    if (!dist_all_gather_on(params->device, values, offsets)) {
        Real *host = host_copy("dist_optimizer", params, values);
        dist_all_gather(host, offsets);
        copy_back(params, values, host, (FlatRange){ 0, params->flat_count });
        host_free(params, host);
    }
    params_written(params);
}

void dist_optimizer(Optimizer *optimizer)
{
    error_need("dist_optimizer", "the optimizer", optimizer);
    if (dist_ranks() == 1)
        return;
    if (optimizer->steps > 0)
        error_raise("dist_optimizer: the optimizer has taken %lld steps, expected none; call it "
                    "before optim_load and optim_step",
                    (long long)optimizer->steps);
    check_equal(optimizer);
    Params *params = optimizer->params;
    if (!params->shards) {
        const int ranks = dist_ranks(), rank = dist_rank();
        Division *division =
            memory_allocate(sizeof *division + (size_t)(ranks + 1) * sizeof *division->offsets);
        if (!division)
            error_raise("dist_optimizer: memory is exhausted");
        divide(params, division->offsets, ranks);
        const FlatRange own = { division->offsets[rank],
                                division->offsets[rank + 1] - division->offsets[rank] };
        division->ranks = ranks;
        division->weight = 1;
        division->shards =
            (Shards){ own,           rank,           reduce_gradients, sum_over_ranks,
                      gather_ranges, collect_ranges, agree_all };
        params->shards = &division->shards;
        broadcast_weights(params);
    }
    optim_set_range("dist_optimizer", optimizer, params->shards->own);
    const DistTransport *transport = dist_transport();
    if (transport->ready && !device_is_cuda(params->device))
        transport->ready(transport->context, device_threads());
}

void dist_set_weight(Params *params, double weight)
{
    error_need("dist_set_weight", "params", params);
    if (!(weight >= 0 && isfinite(weight)))
        error_raise("dist_set_weight: weight is %g, expected 0 or more, and finite", weight);
    if (dist_ranks() > 1 && !params->shards)
        error_raise("dist_set_weight: expected after dist_optimizer, which divides the weights");
    if (params->shards)
        ((Division *)params->shards)->weight = weight;
}
