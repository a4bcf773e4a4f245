/* Params: the registry of named weights, their storage and their gradients.
 *
 * A weight has the same offset, a multiple of ALIGNMENT, in the flat buffers of values and of
 * gradients. Joined weights follow their whole in the list and share its storage and its gradient
 * without gaps; the whole is no weight of its own. Handles exist from registration on and get their
 * addresses when the flat buffers are allocated. */
#include "nn/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------------- life */
Params *params_new(Device *device, uint64_t seed)
{
    error_need("params_new", "the device", device);
    Params *params = memory_allocate(sizeof *params);
    if (!params)
        error_raise("params_new: %s", device_exhausted(device, sizeof *params).text);
    *params = (Params){ .device = device, .seed = seed };
    params->weights_end = &params->weights;
    return params;
}

/* From here on, the use of a weight or constant raises. */
static void free_storage(Params *params)
{
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.data = weight->gradient.data = NULL;
    for (Constant *constant = params->constants; constant; constant = constant->next) {
        device_free(params->device, constant->tensor.block);
        constant->tensor.data = NULL;
        constant->tensor.params = params;
        constant->tensor.allocate = params_allocate_weights;
    }
    device_free(params->device, params->values);
    device_free(params->device, params->gradients);
    device_free(params->device, params->bf16);
    params->values = params->gradients = params->bf16 = NULL;
    params->freed = true;
}

void params_free(Params *params)
{
    static _Thread_local Params *guarded; /* their handles stay; reachable, for leak checkers */
    if (!params)
        return;
    if (params->freed)
        error_raise("params_free: these params were freed before");
    free_storage(params);
    free(params->shards);
    params->shards = NULL;
    if (memory_is_guarded()) {
        params->next_freed = guarded;
        guarded = params;
        return;
    }
    for (Weight *weight = params->weights, *next; weight; weight = next) {
        next = weight->next;
        while (next && next->tensor.base) /* one allocation with the whole */
            next = next->next;
        free(weight);
    }
    for (Constant *constant = params->constants, *next; constant; constant = next) {
        next = constant->next;
        free(constant);
    }
    for (Memory *memory = params->memory, *next; memory; memory = next) {
        next = memory->next;
        free(memory);
    }
    free(params);
}

Device *params_device(const Params *params)
{
    return params->device;
}

/* ----------------------------------------------------------------------------------- allocation */
Random params_random(const Params *params, const char *name)
{
    return random_new(params->seed, random_stream(name));
}

/* The scale of the uniform or normal distribution. */
static Real distribution_scale(Initializer initializer, Shape shape)
{
    if (initializer.kind < INITIAL_XAVIER)
        return (Real)initializer.scale;
    const int64_t n = shape_count(shape);
    const double inputs = (double)(n / shape.size[0]);               /* n in */
    const double outputs = (double)(n / shape.size[shape.rank - 1]); /* n out */
    const double square = initializer.kind == INITIAL_XAVIER ? 6 / (inputs + outputs) : 2 / inputs;
    return (Real)(initializer.scale * sqrt(square));
}

/* Initial values depend on seed and name alone, not on other weights or the device. */
static void draw(const Params *params, const Weight *weight, Real *out)
{
    const int64_t n = tensor_count(&weight->tensor);
    const Initializer initializer = weight->initializer;
    const Real scale = distribution_scale(initializer, weight->tensor.shape);
    Random random = params_random(params, weight->name.text);
    switch (initializer.kind) {
    case INITIAL_DEFAULT: /* raised in check_initializer */
    case INITIAL_ZERO:
    case INITIAL_ONE:
        for (int64_t i = 0; i < n; i++)
            out[i] = initializer.kind == INITIAL_ONE;
        break;
    case INITIAL_UNIFORM:
    case INITIAL_XAVIER:
        random_uniform(&random, out, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = scale * (2 * out[i] - 1);
        break;
    case INITIAL_NORMAL:
    case INITIAL_KAIMING:
        random_normal(&random, out, n);
        for (int64_t i = 0; i < n; i++)
            out[i] = scale * out[i];
        break;
    }
}

static void make_flat_tensors(Params *params)
{
    params->flat_gradients = (Tensor){ .device = params->device,
                                       .type = TENSOR_REAL,
                                       .shape = { 1, { params->flat_count } },
                                       .data = params->gradients->data,
                                       .params = params };
    params->flat_values = params->flat_gradients;
    params->flat_values.data = params->values->data;
    params->flat_values.bf16_copy = params_bf16_copy;
}

const char *params_allocate(Params *params)
{
    if (params->freed)
        return "cannot be used after params_free";
    if (params->values)
        return NULL;
    const size_t bytes = (size_t)params->flat_count * sizeof(Real);
    Real *host = memory_allocate(bytes);
    Block *values = device_allocate(params->device, bytes);
    Block *gradients = device_allocate(params->device, bytes + sizeof(Clipping));
    if (!host || !values || !gradients) {
        free(host);
        device_free(params->device, values);
        device_free(params->device, gradients);
        snprintf(params->error, sizeof params->error, "cannot be allocated: %s",
                 device_exhausted(params->device, bytes).text);
        return params->error;
    }
    memset(host, 0, bytes); /* the padding */
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole)
            draw(params, weight, host + weight->offset);
    device_copy_in(params->device, values->data, host, bytes);
    device_zero(params->device, gradients->data, bytes + sizeof(Clipping));
    free(host);
    params->values = values;
    params->gradients = gradients;
    /* Clipping's scalars stand behind the gradients. */
    params->clipping = (Clipping *)((Real *)gradients->data + params->flat_count);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        weight->tensor.data = (Real *)values->data + weight->offset;
        weight->gradient.data = (Real *)gradients->data + weight->offset;
    }
    make_flat_tensors(params);
    return NULL;
}

const char *params_allocate_weights(Tensor *tensor)
{
    return params_allocate(tensor->params);
}

/* -------------------------------------------------------------------------------------- finding */
Tensor *params_find(const Params *params, const char *name)
{
    error_need("params_find", "params", params);
    error_need("params_find", "the name", name);
    for (Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole && strcmp(weight->name.text, name) == 0)
            return &weight->tensor;
    return NULL;
}

int params_count(const Params *params)
{
    int count = 0;
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        count += !weight->is_whole;
    return count;
}

int64_t params_elements(const Params *params)
{
    int64_t count = 0;
    for (const Weight *weight = params->weights; weight; weight = weight->next)
        count += weight->is_whole ? 0 : tensor_count(&weight->tensor);
    return count;
}

Tensor *params_at(const Params *params, int index)
{
    int i = 0;
    for (Weight *weight = params->weights; weight; weight = weight->next)
        if (!weight->is_whole && i++ == index)
            return &weight->tensor;
    error_raise("params_at: there is no weight %d; there are %d", index, params_count(params));
}

/* --------------------------------------------------------------------------------- flat buffers */
static void need_storage(Params *params)
{
    const char *error = params_allocate(params);
    if (error)
        error_raise("params: the weights %s", error);
}

Tensor *params_flat_values(Params *params)
{
    need_storage(params);
    return &params->flat_values;
}

/* Gradients that got no contribution, and those of frozen weights that are joined to others, become
 * 0 here, and not at the end of a step: a first contribution stores. */
Tensor *params_flat_gradients(Params *params)
{
    need_storage(params);
    for (Weight *weight = params->weights; weight; weight = weight->next) {
        Tensor *tensor = &weight->tensor;
        if (tensor->base ? !tensor->requires_grad : !tensor->has_gradient)
            device_zero(params->device, weight->gradient.data,
                        (size_t)tensor_count(tensor) * sizeof(Real));
        tensor->has_gradient = !tensor->base;
    }
    return &params->flat_gradients;
}

bool params_have_gradients(const Params *params)
{
    bool required = false;
    for (const Weight *weight = params->weights; weight; weight = weight->next) {
        if (weight->tensor.has_gradient)
            return true;
        required |= weight->tensor.requires_grad;
    }
    return !required;
}

void params_raise_no_gradients(const char *function)
{
    error_raise("%s: no weight has a gradient since the last step; call tape_backward first",
                function);
}

FlatRange params_range(const Params *params)
{
    return params->shards ? params->shards->own : (FlatRange){ 0, params->flat_count };
}

Real *params_sum_gradients(const char *function, Params *params)
{
    if (params->shards && !params->reduced)
        params->shards->reduce(function, params);
    else if (!params->shards && !params_have_gradients(params))
        params_raise_no_gradients(function);
    params->reduced = params->shards != NULL;
    return params_flat_gradients(params)->data + params_range(params).first;
}

void params_zero_gradients(Params *params)
{
    error_need("params_zero_gradients", "params", params);
    params->clipped = params->reduced = false;
    for (Weight *weight = params->weights; weight; weight = weight->next)
        weight->tensor.has_gradient = false;
}

int64_t params_offset(const Params *params, const Tensor *weight)
{
    return weight->data - params->flat_values.data;
}
