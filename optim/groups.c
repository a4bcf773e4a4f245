/* Parameter groups: factors of the learning rate and of the weight decay for the weights whose
 * names match a pattern. A step stays one pass over the flat buffers: a table in device memory
 * holds the group of each unit of 2^unit_bits elements, and each group has per-step scalars of its
 * own. A unit belongs to one weight: weights start at multiples of 16 elements, joined weights
 * possibly at multiples of 8, 4, 2 or 1. Group 0 holds the weights that no pattern has matched. */
#include "optim/internal.h"

#include <fnmatch.h>
#include <stdlib.h>

enum { MAX_GROUPS = 256, MAX_UNIT_BITS = 4 };

typedef struct Factors {
    double learning_rate, weight_decay;
} Factors;

struct Groups {
    Block *block; /* in device memory: StepScalars [MAX_GROUPS], then the table */
    int count;
    Factors factors[MAX_GROUPS];
    int unit_bits;
    int64_t unit_count;
    uint8_t table[]; /* [unit_count] */
};

static uint8_t *device_table(const Groups *groups)
{
    return (uint8_t *)((StepScalars *)groups->block->data + MAX_GROUPS);
}

static int64_t offset_of(const Optimizer *optimizer, const Tensor *weight)
{
    return weight->data - params_flat_values(optimizer->params)->data;
}

/* The table with all weights in group 0; NULL when memory is exhausted. */
static Groups *groups_new(const Optimizer *optimizer)
{
    int bits = MAX_UNIT_BITS;
    for (int i = 0; i < params_count(optimizer->params); i++)
        while (offset_of(optimizer, params_at(optimizer->params, i)) % (1 << bits) != 0)
            bits--;
    const int64_t units = params_flat_count(optimizer->params) >> bits;
    Groups *groups = memory_allocate(sizeof *groups + (size_t)units);
    Block *block =
        device_allocate(optimizer->device, MAX_GROUPS * sizeof(StepScalars) + (size_t)units);
    if (!groups || !block) {
        free(groups);
        device_free(optimizer->device, block);
        return NULL;
    }
    *groups = (Groups){ .block = block, .count = 1, .unit_bits = bits, .unit_count = units };
    groups->factors[0] = (Factors){ 1, 1 };
    memset(groups->table, 0, (size_t)units);
    return groups;
}

void groups_free(Optimizer *optimizer)
{
    if (optimizer->groups)
        device_free(optimizer->device, optimizer->groups->block);
    free(optimizer->groups);
}

/* The group with these factors: one in use, or one that no unit uses any more; -1 if there is
 * none. */
static int find_group(Groups *groups, Factors factors)
{
    bool used[MAX_GROUPS] = { true };
    for (int64_t unit = 0; unit < groups->unit_count; unit++)
        used[groups->table[unit]] = true;
    int unused = -1;
    for (int i = MAX_GROUPS - 1; i >= 0; i--) {
        const Factors *own = &groups->factors[i];
        if (used[i] && own->learning_rate == factors.learning_rate &&
            own->weight_decay == factors.weight_decay)
            return i;
        if (!used[i])
            unused = i;
    }
    if (unused >= 0)
        groups->factors[unused] = factors;
    if (unused >= groups->count)
        groups->count = unused + 1;
    return unused;
}

static void check_factor(const char *name, double factor)
{
    if (!(factor >= 0 && isfinite(factor)))
        error_raise("optim_set_group: %s is %g, expected 0 or more, and finite", name, factor);
}

static bool matches(const char *pattern, const Tensor *weight)
{
    return fnmatch(pattern, weight->name, 0) == 0;
}

static void check(const Optimizer *optimizer, const char *pattern, Factors factors)
{
    if (!optimizer || !pattern)
        error_raise("optim_set_group: the %s is NULL", optimizer ? "pattern" : "optimizer");
    check_factor("learning_rate_factor", factors.learning_rate);
    check_factor("weight_decay_factor", factors.weight_decay);
    if (device_is_capturing(optimizer->device))
        error_raise("optim_set_group: this step is replayed; set the group before it");
    for (int i = 0; i < params_count(optimizer->params); i++)
        if (matches(pattern, params_at(optimizer->params, i)))
            return;
    error_raise("optim_set_group: no weight's name matches \"%s\"", pattern);
}

void optim_set_group(Optimizer *optimizer, const char *pattern, double learning_rate_factor,
                     double weight_decay_factor)
{
    const Factors factors = { learning_rate_factor, weight_decay_factor };
    check(optimizer, pattern, factors);
    const Params *params = optimizer->params;
    if (!optimizer->groups)
        optimizer->groups = groups_new(optimizer);
    Groups *groups = optimizer->groups;
    if (!groups)
        error_raise("optim_set_group: %s",
                    device_exhausted(optimizer->device, MAX_GROUPS * sizeof(StepScalars)).text);
    const int group = find_group(groups, factors);
    if (group < 0)
        error_raise("optim_set_group: there are %d different pairs of factors already", MAX_GROUPS);
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        const int64_t offset = offset_of(optimizer, weight), end = offset + tensor_count(weight);
        for (int64_t unit = offset >> groups->unit_bits;
             matches(pattern, weight) && unit << groups->unit_bits < end; unit++)
            groups->table[unit] = (uint8_t)group;
    }
    device_copy_in(optimizer->device, device_table(groups), groups->table,
                   (size_t)groups->unit_count);
}

StepScalars groups_begin_step(const Optimizer *optimizer, double learning_rate)
{
    const Groups *groups = optimizer->groups;
    StepScalars scalars[MAX_GROUPS];
    for (int i = 0; i < (groups ? groups->count : 1); i++) {
        const Factors factors = groups ? groups->factors[i] : (Factors){ 1, 1 };
        Optimizer group = *optimizer;
        group.weight_decay *= factors.weight_decay;
        scalars[i] =
            optimizer->scalars(&group, optimizer->steps, learning_rate * factors.learning_rate);
        scalars[i].decay = (Real)factors.weight_decay;
        scalars[i].bf16 = params_flat_bf16(optimizer->params);
    }
    if (!groups)
        return scalars[0];
    device_copy_in(optimizer->device, groups->block->data, scalars,
                   (size_t)groups->count * sizeof *scalars);
    scalars[0].groups = device_table(groups);
    scalars[0].of_group = groups->block->data;
    scalars[0].unit_bits = groups->unit_bits;
    return scalars[0];
}
