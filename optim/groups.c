/* Parameter groups: factors of the learning rate and of the weight decay for the weights whose
 * names match a pattern. A step stays one pass over the flat buffers: a table in device memory
 * holds the group of each unit of 2^unit_bits elements, and each group has per-step scalars of its
 * own. Weights that require no gradient are FROZEN in the table, whatever their group. A unit
 * belongs to one weight: weights start at multiples of 16 elements, joined weights possibly at
 * multiples of 8, 4, 2 or 1. Group 0 holds the weights that no pattern has matched. */
#include "optim/internal.h"

#include <stdlib.h>

enum { MAX_GROUPS = FROZEN, MAX_UNIT_BITS = 4, ROLES = 2 };

typedef struct Factors {
    double learning_rate, weight_decay;
    int role; /* of its weights, for the optimizer's kind */
} Factors;

struct Groups {
    Block *block; /* in device memory: StepScalars [MAX_GROUPS], then the table */
    int count;
    Factors factors[MAX_GROUPS];
    int unit_bits;
    int64_t unit_count;
    bool changed;       /* a weight's group has changed since the table was uploaded */
    int frozen_version; /* of the Params at that time */
    uint8_t *of_weight; /* [params_count], stored after the table */
    uint8_t table[];    /* [unit_count], on the host */
};

static uint8_t *device_table(const Groups *groups)
{
    return (uint8_t *)((StepScalars *)groups->block->data + MAX_GROUPS);
}

static size_t device_bytes(int64_t units)
{
    return MAX_GROUPS * sizeof(StepScalars) + (size_t)units;
}

static Groups *groups_new(Optimizer *optimizer)
{
    const int weights = params_count(optimizer->params);
    int bits = MAX_UNIT_BITS;
    for (int i = 0; i < weights; i++)
        while (params_offset(optimizer->params, params_at(optimizer->params, i)) % (1 << bits) != 0)
            bits--;
    const int64_t units = optimizer->params->flat_count >> bits;
    const size_t table_bytes = (size_t)units + (size_t)weights;
    Groups *groups = memory_allocate(sizeof *groups + table_bytes);
    Block *block = device_allocate(optimizer->device, device_bytes(units));
    if (!groups || !block) {
        free(groups);
        device_free(optimizer->device, block);
        return NULL;
    }
    *groups = (Groups){ .block = block, .count = 1, .unit_bits = bits, .unit_count = units };
    groups->factors[0] = (Factors){ 1, 1, false };
    groups->of_weight = groups->table + units;
    groups->changed = true;
    memset(groups->table, 0, table_bytes);
    return optimizer->groups = groups;
}

/* Allocates the groups unless they exist. */
static Groups *need_groups(const char *function, Optimizer *optimizer)
{
    if (!optimizer->groups && !groups_new(optimizer))
        error_raise(
            "%s: %s", function,
            device_exhausted(optimizer->device, device_bytes(optimizer->params->flat_count)).text);
    return optimizer->groups;
}

void groups_free(Optimizer *optimizer)
{
    if (optimizer->groups)
        device_free(optimizer->device, optimizer->groups->block);
    free(optimizer->groups);
}

/* The group with these factors, or one that no weight uses, but not the group `taken`; -1 if there
 * is none. */
static int find_group(Groups *groups, Factors factors, int weights, int taken)
{
    for (int i = 0; i < groups->count; i++)
        if (groups->factors[i].learning_rate == factors.learning_rate &&
            groups->factors[i].weight_decay == factors.weight_decay &&
            groups->factors[i].role == factors.role)
            return i;
    int unused = 1;
    while (unused < groups->count &&
           (unused == taken || memchr(groups->of_weight, unused, (size_t)weights)))
        unused++;
    if (unused == MAX_GROUPS)
        return -1;
    if (unused == groups->count)
        groups->count++;
    groups->factors[unused] = factors;
    return unused;
}

bool optim_set_role(Optimizer *optimizer, const Tensor *weight, int role)
{
    const Params *params = optimizer->params;
    Groups *groups = optimizer->groups ? optimizer->groups : groups_new(optimizer);
    const int count = params_count(params);
    for (int i = 0; groups && i < count; i++)
        if (params_at(params, i) == weight)
            groups->of_weight[i] = (uint8_t)find_group(groups, (Factors){ 1, 1, role }, count, 0);
    if (groups)
        groups->changed = true;
    return groups != NULL;
}

/* Weights that a pattern matches are in one group per role. */
void optim_set_group(Optimizer *optimizer, const char *pattern, double learning_rate_factor,
                     double weight_decay_factor)
{
    optim_need("optim_set_group", optimizer);
    const Params *params = optimizer->params;
    params_check_pattern("optim_set_group", params, pattern);
    optim_check_not_negative("optim_set_group", "learning_rate_factor", learning_rate_factor);
    optim_check_not_negative("optim_set_group", "weight_decay_factor", weight_decay_factor);
    Groups *groups = need_groups("optim_set_group", optimizer);
    const int count = params_count(params);
    int group[ROLES] = { 0 };
    bool used[ROLES] = { false };
    for (int i = 0; i < count; i++)
        if (params_matches(pattern, params_at(params, i)))
            used[groups->factors[groups->of_weight[i]].role] = true;
    for (int role = 0; role < ROLES; role++) {
        const Factors factors = { learning_rate_factor, weight_decay_factor, role };
        if (used[role] && (group[role] = find_group(groups, factors, count, group[0])) < 0)
            error_raise("optim_set_group: there are %d different pairs of factors already",
                        MAX_GROUPS);
    }
    for (int i = 0; i < count; i++)
        if (params_matches(pattern, params_at(params, i)))
            groups->of_weight[i] = (uint8_t)group[groups->factors[groups->of_weight[i]].role];
    groups->changed = true;
}

void groups_update(Optimizer *optimizer)
{
    const Params *params = optimizer->params;
    const int version = params->frozen_version;
    if (!optimizer->groups && version == 0)
        return;
    Groups *groups = need_groups("optim_step", optimizer);
    if (!groups->changed && groups->frozen_version == version)
        return;
    for (int i = 0; i < params_count(params); i++) {
        const Tensor *weight = params_at(params, i);
        const int64_t start = params_offset(params, weight), end = start + tensor_count(weight);
        const uint8_t group = weight->requires_grad ? groups->of_weight[i] : FROZEN;
        for (int64_t unit = start >> groups->unit_bits; unit << groups->unit_bits < end; unit++)
            groups->table[unit] = group;
    }
    device_copy_in(optimizer->device, device_table(groups), groups->table,
                   (size_t)groups->unit_count);
    groups->changed = false;
    groups->frozen_version = version;
}

void groups_set_scalars(const Optimizer *optimizer, double learning_rate, StepScalars *all)
{
    const Groups *groups = optimizer->groups;
    if (!groups)
        return;
    StepScalars scalars[MAX_GROUPS];
    for (int i = 0; i < groups->count; i++) {
        const Factors factors = groups->factors[i];
        scalars[i] = optimizer->kind->scalars(
            optimizer, factors.role, learning_rate * factors.learning_rate, factors.weight_decay);
        scalars[i].bf16 = all->bf16;
    }
    device_copy_in(optimizer->device, groups->block->data, scalars,
                   (size_t)groups->count * sizeof *scalars);
    all->groups = device_table(groups) + (optimizer->range.first >> groups->unit_bits);
    all->of_group = groups->block->data;
    all->unit_bits = groups->unit_bits;
}
